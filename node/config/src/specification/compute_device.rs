//! The setting `device` of a peer: where it computes deep networks.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// Where a peer computes deep networks. Other models are always computed on the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ComputeDevice {
    /// On the processor.
    #[default]
    Cpu,
    /// On a graphics card.
    Gpu,
}

/// There is no such device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a device is cpu or gpu")]
pub struct NotADevice;

impl FromStr for ComputeDevice {
    type Err = NotADevice;

    fn from_str(text: &str) -> Result<Self, NotADevice> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            _ => Err(NotADevice),
        }
    }
}

impl TryFrom<String> for ComputeDevice {
    type Error = NotADevice;

    fn try_from(text: String) -> Result<Self, NotADevice> {
        text.parse()
    }
}

impl fmt::Display for ComputeDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::specification::RunFile;

    #[test]
    fn devices_are_read_alike_from_the_command_line_and_from_files() {
        let in_file = |text: &str| {
            RunFile::parse(&format!("[compute]\ndevice = \"{text}\"")).map(|run| run.compute.device)
        };
        for device in [ComputeDevice::Cpu, ComputeDevice::Gpu] {
            let text = device.to_string();
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(in_file(&text).unwrap(), Some(device));
        }
        assert_eq!("cuda:0".parse::<ComputeDevice>(), Err(NotADevice));
        assert!(in_file("cuda:0").unwrap_err().to_string().contains("a device is cpu or gpu"));
        assert_eq!(RunFile::parse("").unwrap().compute.device, None);
    }
}
