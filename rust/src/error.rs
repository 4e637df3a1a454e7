//! What a call across the C ABI can fail with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Code {
    Ok = 0,
    InvalidArgument = 1,
    DataLoss = 2,
    Unimplemented = 3,
    Internal = 4,
    NotFound = 5,
}

#[derive(Debug)]
pub struct Error {
    pub code: Code,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

pub fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error { code: Code::InvalidArgument, message: message.into() })
}
pub fn data_loss<T>(message: impl Into<String>) -> Result<T> {
    Err(Error { code: Code::DataLoss, message: message.into() })
}
pub fn unimplemented<T>(message: impl Into<String>) -> Result<T> {
    Err(Error { code: Code::Unimplemented, message: message.into() })
}
