//! A walk through bytes of Thrift's compact protocol, in which footers and headers of pages are written.
//!
//! The library that decodes them makes room for a list or a text as soon as it has read its length, and calls itself for whatever is nested.
//! So the bytes are walked first: afterwards it is known that each length fits into the bytes, and how deep they nest.
//!
//! # Reading
//! The specification of the compact protocol, in the repository of Apache Thrift.

use crate::limits::THRIFT_DEPTH_MAX;

/// What the walk meets, at a path of field numbers. The elements of a list have the path of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A struct begins.
    Struct,
    /// A number, or a truth value as 0 or 1.
    Number(i64),
}

/// Why bytes cannot be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkError {
    /// They end too early: more bytes may help.
    Short,
    /// They are not of this protocol, or nest too deep.
    Wrong,
}

/// Walks through the struct at the beginning of `bytes`, and returns how many bytes it has.
pub(crate) fn walk(bytes: &[u8], visit: &mut dyn FnMut(&[i16], Event)) -> Result<usize, WalkError> {
    let mut walker = Walker { bytes, at: 0, path: vec![], visit };
    walker.structure()?;
    Ok(walker.at)
}

struct Walker<'a> {
    bytes: &'a [u8],
    /// Where the next byte is.
    at: usize,
    /// The numbers of the fields around it.
    path: Vec<i16>,
    visit: &'a mut dyn FnMut(&[i16], Event),
}

impl Walker<'_> {
    fn structure(&mut self) -> Result<(), WalkError> {
        if self.path.len() > THRIFT_DEPTH_MAX {
            return Err(WalkError::Wrong);
        }
        (self.visit)(&self.path, Event::Struct);
        let mut field = 0_i16;
        loop {
            let head = self.byte()?;
            let kind = head & 0x0f;
            if kind == 0 {
                return Ok(());
            }
            field = match head >> 4 {
                0 => i16::try_from(self.zigzag()?).map_err(|_| WalkError::Wrong)?,
                step => field.checked_add(i16::from(step)).ok_or(WalkError::Wrong)?,
            };
            self.path.push(field);
            match kind {
                // A truth value is in the type of its field, and nowhere else.
                1 | 2 => (self.visit)(&self.path, Event::Number(i64::from(kind == 1))),
                other => self.value(other)?,
            }
            self.path.pop();
        }
    }

    fn value(&mut self, kind: u8) -> Result<(), WalkError> {
        match kind {
            // In a list, a truth value has a byte.
            1..=3 => {
                let byte = self.byte()?;
                (self.visit)(&self.path, Event::Number(i64::from(byte)));
            }
            4..=6 => {
                let number = self.zigzag()?;
                (self.visit)(&self.path, Event::Number(number));
            }
            7 => self.skip(8)?,
            8 => {
                let length = self.varint()?;
                self.skip(length)?;
            }
            9 | 10 => self.list()?,
            12 => self.structure()?,
            13 => self.skip(16)?,
            // Neither footers nor headers have maps.
            _ => return Err(WalkError::Wrong),
        }
        Ok(())
    }

    fn list(&mut self) -> Result<(), WalkError> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Each element has at least one byte.
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(WalkError::Short);
        }
        // Lists of lists do not occur, and would nest without a field in the path.
        if matches!(head & 0x0f, 9 | 10) {
            return Err(WalkError::Wrong);
        }
        (0..count).try_for_each(|_| self.value(head & 0x0f))
    }

    fn byte(&mut self) -> Result<u8, WalkError> {
        let byte = *self.bytes.get(self.at).ok_or(WalkError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, count: u64) -> Result<(), WalkError> {
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(WalkError::Short);
        }
        self.at += count as usize;
        Ok(())
    }

    fn zigzag(&mut self) -> Result<i64, WalkError> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn varint(&mut self) -> Result<u64, WalkError> {
        let (number, length) = varint(&self.bytes[self.at..])?;
        self.at += length;
        Ok(number)
    }
}

/// A number in groups of 7 bits, the low ones first, and how many bytes it has.
pub(crate) fn varint(bytes: &[u8]) -> Result<(u64, usize), WalkError> {
    let mut number = 0_u64;
    for index in 0..10 {
        let byte = *bytes.get(index).ok_or(WalkError::Short)?;
        let bits = u64::from(byte & 0x7f);
        if index == 9 && byte > 1 {
            return Err(WalkError::Wrong);
        }
        number |= bits << (7 * index);
        if byte & 0x80 == 0 {
            return Ok((number, index + 1));
        }
    }
    Err(WalkError::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(bytes: &[u8]) -> Result<Vec<(Vec<i16>, Event)>, WalkError> {
        let mut events = vec![];
        walk(bytes, &mut |path, event| events.push((path.to_vec(), event)))?;
        Ok(events)
    }

    #[test]
    fn numbers_have_the_path_of_their_fields() {
        // Field 1: the number 3; field 2: true; field 5: a struct whose field 1 is -1; field 6: a list of two structs without fields.
        let bytes = [0x15, 6, 0x11, 0x3c, 0x15, 1, 0, 0x19, 0x2c, 0, 0, 0];
        let found = events(&bytes).unwrap();
        assert_eq!(
            found,
            [
                (vec![], Event::Struct),
                (vec![1], Event::Number(3)),
                (vec![2], Event::Number(1)),
                (vec![5], Event::Struct),
                (vec![5, 1], Event::Number(-1)),
                (vec![6], Event::Struct),
                (vec![6], Event::Struct),
            ]
        );
        for length in 0..bytes.len() {
            assert_eq!(events(&bytes[..length]), Err(WalkError::Short), "{length}");
        }
    }

    #[test]
    fn what_nests_too_deep_is_refused() {
        let mut bytes = vec![0x1c; 10_000];
        bytes.extend([0; 10_001]);
        assert_eq!(events(&bytes), Err(WalkError::Wrong));
        // A list of lists, and so on.
        assert_eq!(events(&[0x19; 10_000]), Err(WalkError::Wrong));
    }

    #[test]
    fn lengths_beyond_the_end_are_refused() {
        // A text, and a list, of 2^40 elements.
        for kind in [vec![0x18_u8], vec![0x19, 0xf3]] {
            let bytes = [kind, vec![0x80, 0x80, 0x80, 0x80, 0x80, 0x20]].concat();
            assert_eq!(events(&bytes), Err(WalkError::Short));
        }
    }
}
