//! What producers compress with, unpacked into one buffer that is kept, never beyond a limit.

use std::io::Read;

use lz4_flex::frame::FrameDecoder;

use crate::reading::Reader;

/// What Java's snappy library puts in front of its blocks, two version numbers of four bytes behind it.
const XERIAL: &[u8] = b"\x82SNAPPY\x00";
const XERIAL_VERSIONS: i64 = 8;

/// Why a batch is not unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A number that is no codec's.
    Unknown(i16),
    /// The library, by its name, refuses the data.
    Broken(&'static str),
    /// The data come to more than the limit.
    TooLarge,
}

/// Unpacks batch after batch.
pub struct Unpacker {
    unpacked: Vec<u8>,
    snappy: snap::raw::Decoder,
    zstd: zstd_safe::DCtx<'static>,
    limit: usize,
}

impl Unpacker {
    /// One that stops at `limit` bytes a batch.
    pub fn new(limit: usize) -> Self {
        Self {
            unpacked: Vec::new(),
            snappy: snap::raw::Decoder::new(),
            zstd: zstd_safe::DCtx::create(),
            limit,
        }
    }

    /// The bytes that were packed by the codec of this number (`CompressionType.java`); 0 is none.
    pub fn unpack<'a>(&'a mut self, codec: i16, packed: &'a [u8]) -> Result<&'a [u8], Refused> {
        self.unpacked.clear();
        match codec {
            0 => {
                return if packed.len() > self.limit {
                    Err(Refused::TooLarge)
                } else {
                    Ok(packed)
                };
            }
            1 => self.gunzip(packed)?,
            2 => self.unsnap(packed)?,
            3 => self.unlz4(packed)?,
            4 => self.unzstd(packed)?,
            _ => return Err(Refused::Unknown(codec)),
        }
        Ok(&self.unpacked)
    }

    /// Drop what was unpacked last, and of its memory all beyond so many bytes: else the largest batch that ever came
    /// would be kept.
    pub fn keep_at_most(&mut self, bytes: usize) {
        self.unpacked.clear();
        self.unpacked.shrink_to(bytes);
    }

    fn gunzip(&mut self, packed: &[u8]) -> Result<(), Refused> {
        read_all(
            flate2::bufread::MultiGzDecoder::new(packed),
            "gzip",
            self.limit,
            &mut self.unpacked,
        )
    }

    fn unlz4(&mut self, packed: &[u8]) -> Result<(), Refused> {
        // A frame after the other. The decoder takes a frame that ends within its own header for an empty one.
        let mut rest = packed;
        loop {
            if rest.len() < LZ4_SMALLEST || !rest.starts_with(&LZ4_MAGIC) {
                return Err(Refused::Broken("lz4"));
            }
            read_all(
                FrameDecoder::new(&mut rest),
                "lz4",
                self.limit,
                &mut self.unpacked,
            )?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn unsnap(&mut self, packed: &[u8]) -> Result<(), Refused> {
        if !packed.starts_with(XERIAL) {
            return self.unsnap_block(packed);
        }
        let reader = &mut Reader::new(&packed[XERIAL.len()..]);
        let broken = |_| Refused::Broken("snappy");
        reader.take(XERIAL_VERSIONS).map_err(broken)?;
        while reader.left() > 0 {
            let size = reader.int32().map_err(broken)?;
            self.unsnap_block(reader.take(i64::from(size)).map_err(broken)?)?;
        }
        Ok(())
    }

    fn unsnap_block(&mut self, block: &[u8]) -> Result<(), Refused> {
        let broken = |_| Refused::Broken("snappy");
        let before = self.unpacked.len();
        let size = snap::raw::decompress_len(block).map_err(broken)?;
        if size > self.limit - before {
            return Err(Refused::TooLarge);
        }
        self.unpacked.resize(before + size, 0);
        self.snappy
            .decompress(block, &mut self.unpacked[before..])
            .map_err(broken)?;
        Ok(())
    }

    fn unzstd(&mut self, packed: &[u8]) -> Result<(), Refused> {
        let broken = Refused::Broken("zstd");
        if packed.is_empty() {
            return Err(broken);
        }
        // Reckoned from the frames' headers, so not believed beyond the limit.
        let bound = zstd_safe::decompress_bound(packed).map_err(|_| broken)?;
        let room = usize::try_from(bound).map_or(self.limit, |bound| bound.min(self.limit));
        self.unpacked.reserve(room);
        match self.zstd.decompress(&mut self.unpacked, packed) {
            Ok(_) if self.unpacked.len() > self.limit => Err(Refused::TooLarge),
            Ok(_) => Ok(()),
            Err(code) if code.wrapping_neg() == ZSTD_NO_ROOM => Err(Refused::TooLarge),
            Err(_) => Err(broken),
        }
    }
}

/// What zstd's functions answer, negative, where the buffer is too small (`zstd_errors.h`).
const ZSTD_NO_ROOM: usize = 70;
/// What begins an lz4 frame (lz4_Frame_format.md). Other frames that the library takes are no records.
const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Bytes of an lz4 frame without a block: magic, flags, block size, checksum, end mark.
const LZ4_SMALLEST: usize = 11;

/// Read to the stream's end behind what there is, unless that is beyond the limit.
fn read_all(
    stream: impl Read,
    name: &'static str,
    limit: usize,
    into: &mut Vec<u8>,
) -> Result<(), Refused> {
    let room = (limit - into.len()) as u64 + 1;
    stream
        .take(room)
        .read_to_end(into)
        .map_err(|_| Refused::Broken(name))?;
    if into.len() > limit {
        return Err(Refused::TooLarge);
    }
    Ok(())
}
