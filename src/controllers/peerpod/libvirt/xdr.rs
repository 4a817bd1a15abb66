//! (pure) Values of libvirt's remote protocol: XDR, with big-endian numbers and padding to 4 bytes.

use crate::api::peerpod::LibvirtUuid;

/// Maximum number of entries of a list: libvirt's limit for domains, pools and volumes.
const ENTRIES_MAX: usize = 16_384;

/// The bytes are not of that form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub uuid: LibvirtUuid,
    /// Its number while it is active, otherwise -1.
    pub number: i32,
}

/// A storage pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub uuid: LibvirtUuid,
}

/// A volume of a storage pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Name of the pool.
    pub pool: String,
    /// Its name in the pool.
    pub name: String,
    /// Its identifier; in a directory, the path.
    pub key: String,
}

/// Arguments of a call.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Adds a number.
    pub fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Adds a text.
    pub fn text(self, text: &str) -> Self {
        let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut this = self.number(length);
        this.0.extend(text.as_bytes());
        this.0.resize(this.0.len().next_multiple_of(4), 0);
        this
    }

    /// Adds an identifier.
    pub fn uuid(mut self, uuid: LibvirtUuid) -> Self {
        self.0.extend(uuid.0);
        self
    }

    /// Adds a domain.
    pub fn domain(self, domain: &Domain) -> Self {
        let this = self.text(&domain.name).uuid(domain.uuid);
        this.number(domain.number.cast_unsigned())
    }

    /// Adds a pool.
    pub fn pool(self, pool: &Pool) -> Self {
        self.text(&pool.name).uuid(pool.uuid)
    }

    /// Adds a volume.
    pub fn volume(self, volume: &Volume) -> Self {
        self.text(&volume.pool).text(&volume.name).text(&volume.key)
    }
}

/// The rest of an answer. No length in it makes the reader reserve more memory than the answer has.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// The next value.
    pub fn read<T: Value>(&mut self) -> Result<T, Malformed> {
        T::read(self)
    }

    /// The answer ends here.
    pub fn end(&self) -> Result<(), Malformed> {
        self.0.is_empty().then_some(()).ok_or(Malformed)
    }
}

/// A value of an answer.
pub trait Value: Sized {
    /// Reads it.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed>;
}

impl Value for () {
    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(())
    }
}

impl Value for u32 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self::from_be_bytes)
    }
}

impl Value for i32 {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self::from_be_bytes)
    }
}

impl Value for LibvirtUuid {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.array().map(Self)
    }
}

impl Value for String {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = usize::try_from(reader.read::<u32>()?).map_err(|_| Malformed)?;
        let text = reader.take(length)?;
        let padding = reader.take(length.next_multiple_of(4) - length)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Malformed);
        }
        Self::from_utf8(text.to_vec()).map_err(|_| Malformed)
    }
}

impl<T: Value> Value for Option<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.read::<u32>()? {
            0 => Ok(None),
            1 => reader.read().map(Some),
            _ => Err(Malformed),
        }
    }
}

impl<T: Value> Value for Vec<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = usize::try_from(reader.read::<u32>()?).map_err(|_| Malformed)?;
        if count > ENTRIES_MAX {
            return Err(Malformed);
        }
        // Without a capacity: an entry needs no memory before its bytes are read.
        let mut entries = Self::new();
        for _ in 0..count {
            entries.push(reader.read()?);
        }
        Ok(entries)
    }
}

/// A list that is followed by its length.
pub struct Counted<T>(pub Vec<T>);

impl<T: Value> Value for Counted<T> {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let entries = reader.read()?;
        reader.read::<u32>().map(|_| Self(entries))
    }
}

impl Value for Domain {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: reader.read()?,
            uuid: reader.read()?,
            number: reader.read()?,
        })
    }
}

impl Value for Pool {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            name: reader.read()?,
            uuid: reader.read()?,
        })
    }
}

impl Value for Volume {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            pool: reader.read()?,
            name: reader.read()?,
            key: reader.read()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn volume() -> impl Strategy<Value = Volume> {
        (".{0,9}", ".{0,9}", ".{0,9}").prop_map(|(pool, name, key)| Volume { pool, name, key })
    }

    proptest! {
        #[test]
        fn written_values_are_read_and_cut_or_longer_ones_are_not(
            name in ".{0,9}", uuid: [u8; 16], number: i32, volumes in prop::collection::vec(volume(), 0..4), cut in 1usize..9
        ) {
            let domain = Domain { name, uuid: LibvirtUuid(uuid), number };
            let count = u32::try_from(volumes.len()).unwrap();
            let writer = Writer::default().domain(&domain).number(count);
            let bytes = volumes.iter().fold(writer, |writer, it| writer.volume(it)).0;
            let read = |bytes: &[u8]| {
                let mut reader = Reader(bytes);
                let read: (Domain, Vec<Volume>) = (reader.read()?, reader.read()?);
                reader.end().map(|()| read)
            };
            prop_assert_eq!(read(&bytes), Ok((domain, volumes)));
            prop_assert_eq!(read(&bytes[..bytes.len() - cut]), Err(Malformed));
            prop_assert_eq!(read(&[&bytes[..], &[0; 4]].concat()), Err(Malformed));
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes: Vec<u8>) {
            let _ = Reader(&bytes).read::<Vec<Volume>>();
            let _ = Reader(&bytes).read::<Option<String>>();
            let huge = [&u32::MAX.to_be_bytes()[..], &bytes].concat();
            prop_assert_eq!(Reader(&huge).read::<String>(), Err(Malformed));
            prop_assert_eq!(Reader(&huge).read::<Vec<u32>>(), Err(Malformed));
        }
    }
}
