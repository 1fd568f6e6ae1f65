//! A directory in memory with the manners of a disk: what is not synced may be lost, reordered or torn at 512 bytes.

use crate::storage::{FileEntry, Storage, StorageError};

/// Files in memory; remembers what a power cut would leave.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {}

impl Storage for MemoryStorage {
    fn list(&mut self) -> Result<Vec<FileEntry>, StorageError> {
        todo!()
    }
    fn read(&mut self, _file: &str, _offset: u64, _into: &mut [u8]) -> Result<(), StorageError> {
        todo!()
    }
    fn create(&mut self, _file: &str, _bytes: u64) -> Result<(), StorageError> {
        todo!()
    }
    fn write(&mut self, _file: &str, _offset: u64, _bytes: &[u8]) -> Result<(), StorageError> {
        todo!()
    }
    fn sync(&mut self, _file: &str) -> Result<(), StorageError> {
        todo!()
    }
    fn rename(&mut self, _from: &str, _to: &str) -> Result<(), StorageError> {
        todo!()
    }
    fn remove(&mut self, _file: &str) -> Result<(), StorageError> {
        todo!()
    }
    fn sync_directory(&mut self) -> Result<(), StorageError> {
        todo!()
    }
}
