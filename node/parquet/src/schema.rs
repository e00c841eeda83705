//! Which columns of a file can be used, as what, and why others cannot.

use std::fmt;

use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as PhysicalType};
use parquet::file::metadata::ParquetMetaData;
use parquet::schema::types::Type;

use crate::time_text::Unit;

/// What the cells of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 0 or 1.
    Boolean,
    /// Whole numbers, in 32 or 64 bits, with or without a sign.
    Integer { is_signed: bool },
    /// Numbers with so many digits behind the point.
    Decimal { scale: u32 },
    /// Numbers of 32 or 64 bits.
    Float,
    /// Numbers of 16 bits.
    Half,
    /// Days since 1970.
    Date,
    /// Time since midnight.
    Time { unit: Unit },
    /// Time since 1970; in UTC or without a zone.
    Timestamp { unit: Unit, is_utc: bool },
    /// Nanoseconds of a day, and the day: how older programs write time.
    Timestamp96,
    /// Text in UTF-8.
    Text,
    /// A number of 128 bits, written as such numbers are.
    Uuid,
}

/// A column that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Its place among the columns of the file, where each part of a nested column counts.
    pub(crate) leaf: usize,
    pub(crate) physical: PhysicalType,
    pub(crate) kind: Kind,
}

/// A column that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub reason: &'static str,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" holds {}", self.name, self.reason)
    }
}

/// The columns of a file, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Schema {
    pub(crate) columns: Vec<Column>,
    pub(crate) left_out: Vec<LeftOut>,
}

impl Schema {
    /// The columns of a file.
    pub(crate) fn of(metadata: &ParquetMetaData) -> Self {
        let descriptor = metadata.file_metadata().schema_descr();
        let mut schema = Self::default();
        let mut leaf = 0;
        for field in descriptor.root_schema().get_fields() {
            let name = field.name().to_owned();
            match usable(field) {
                Ok((physical, kind)) => schema.columns.push(Column { name, leaf, physical, kind }),
                Err(reason) => schema.left_out.push(LeftOut { name, reason }),
            }
            leaf += leaves(field);
        }
        schema
    }

    /// The first column in which another file differs, and how.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let here = self.described();
        let there = other.described();
        let different = here.iter().zip(&there).find(|(mine, theirs)| mine != theirs);
        if let Some(((name, kind), (other_name, other_kind))) = different {
            return Some(if name == other_name {
                format!("\"{name}\" holds {kind} here and {other_kind} there")
            } else {
                format!("\"{name}\" is called \"{other_name}\" there, or comes in another order")
            });
        }
        let extra = if here.len() > there.len() { here.get(there.len()) } else { there.get(here.len()) };
        extra.map(|(name, _)| format!("only one has \"{name}\""))
    }

    /// Name and contents of each column.
    fn described(&self) -> Vec<(&str, String)> {
        let used = self.columns.iter().map(|column| {
            let Column { name, physical, kind, .. } = column;
            (name.as_str(), format!("{kind} ({physical})"))
        });
        used.chain(self.left_out.iter().map(|column| (column.name.as_str(), column.reason.to_owned())))
            .collect()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "truth values",
            Self::Integer { .. } => "whole numbers",
            Self::Decimal { .. } => "decimal numbers",
            Self::Float | Self::Half => "numbers",
            Self::Date => "dates",
            Self::Time { .. } => "times of day",
            Self::Timestamp { .. } | Self::Timestamp96 => "times",
            Self::Text => "texts",
            Self::Uuid => "UUIDs",
        })
    }
}

/// How many columns a field is made of. Recursion ends: the depth of a schema was checked.
fn leaves(field: &Type) -> usize {
    if field.is_primitive() { 1 } else { field.get_fields().iter().map(|part| leaves(part)).sum() }
}

/// What a field is, or what it holds that cannot be used.
fn usable(field: &Type) -> Result<(PhysicalType, Kind), &'static str> {
    let info = field.get_basic_info();
    let logical = info.logical_type_ref();
    if !field.is_primitive() {
        return Err(match (logical, info.converted_type()) {
            (Some(LogicalType::List), _) | (_, ConvertedType::LIST) => "lists",
            (Some(LogicalType::Map), _) | (_, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => "maps",
            (Some(LogicalType::Variant(_)), _) => "values of any type",
            _ => "structs",
        });
    }
    if info.has_repetition() && info.repetition() == parquet::basic::Repetition::REPEATED {
        return Err("lists");
    }
    let physical = field.get_physical_type();
    let kind = match physical {
        PhysicalType::BOOLEAN => Kind::Boolean,
        PhysicalType::FLOAT | PhysicalType::DOUBLE => Kind::Float,
        PhysicalType::INT96 => Kind::Timestamp96,
        PhysicalType::INT32 | PhysicalType::INT64 => of_integers(field)?,
        PhysicalType::BYTE_ARRAY | PhysicalType::FIXED_LEN_BYTE_ARRAY => of_bytes(field)?,
    };
    Ok((physical, kind))
}

/// What whole numbers of 32 or 64 bits stand for.
fn of_integers(field: &Type) -> Result<Kind, &'static str> {
    let info = field.get_basic_info();
    Ok(match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::Integer(integer)), _) => Kind::Integer { is_signed: integer.is_signed },
        (Some(LogicalType::Decimal(decimal)), _) => Kind::Decimal { scale: scale(decimal.scale)? },
        (Some(LogicalType::Date), _) => Kind::Date,
        (Some(LogicalType::Time(time)), _) => Kind::Time { unit: unit(&time.unit) },
        (Some(LogicalType::Timestamp(time)), _) => {
            Kind::Timestamp { unit: unit(&time.unit), is_utc: time.is_adjusted_to_u_t_c }
        }
        (_, ConvertedType::DECIMAL) => Kind::Decimal { scale: scale(field.get_scale())? },
        (_, ConvertedType::DATE) => Kind::Date,
        (_, ConvertedType::TIME_MILLIS) => Kind::Time { unit: Unit::Millis },
        (_, ConvertedType::TIME_MICROS) => Kind::Time { unit: Unit::Micros },
        (_, ConvertedType::TIMESTAMP_MILLIS) => Kind::Timestamp { unit: Unit::Millis, is_utc: true },
        (_, ConvertedType::TIMESTAMP_MICROS) => Kind::Timestamp { unit: Unit::Micros, is_utc: true },
        (
            _,
            ConvertedType::UINT_8 | ConvertedType::UINT_16 | ConvertedType::UINT_32 | ConvertedType::UINT_64,
        ) => Kind::Integer { is_signed: false },
        _ => Kind::Integer { is_signed: true },
    })
}

/// What bytes stand for.
fn of_bytes(field: &Type) -> Result<Kind, &'static str> {
    let info = field.get_basic_info();
    let length = match field {
        Type::PrimitiveType { type_length, .. } => *type_length,
        Type::GroupType { .. } => -1,
    };
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::String | LogicalType::Enum | LogicalType::Json), _) => Ok(Kind::Text),
        (Some(LogicalType::Decimal(decimal)), _) => Ok(Kind::Decimal { scale: scale(decimal.scale)? }),
        (Some(LogicalType::Uuid), _) if length == 16 => Ok(Kind::Uuid),
        (Some(LogicalType::Float16), _) if length == 2 => Ok(Kind::Half),
        (Some(LogicalType::Geometry(_) | LogicalType::Geography(_)), _) => Err("shapes on a map"),
        (_, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON) => Ok(Kind::Text),
        (_, ConvertedType::DECIMAL) => Ok(Kind::Decimal { scale: scale(field.get_scale())? }),
        (_, ConvertedType::INTERVAL) => Err("intervals of time"),
        _ => Err("bytes that are no text"),
    }
}

/// Digits behind the point, at most as many as the numbers have.
fn scale(scale: i32) -> Result<u32, &'static str> {
    u32::try_from(scale)
        .ok()
        .filter(|&scale| scale <= DIGITS_MAX)
        .ok_or("decimal numbers of more than 38 digits")
}

fn unit(unit: &TimeUnit) -> Unit {
    match unit {
        TimeUnit::MILLIS => Unit::Millis,
        TimeUnit::MICROS => Unit::Micros,
        TimeUnit::NANOS => Unit::Nanos,
    }
}

/// Digits of the largest decimal numbers, which have 128 bits.
const DIGITS_MAX: u32 = 38;
