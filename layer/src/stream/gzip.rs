//! Gzip framing around a raw inflater.
//!
//! Several members are one stream; other bytes after a member are an error. The CRC is not computed: it would cost an
//! eighth of the time, and the layer's own digest is a stronger check.

use std::io::{self, BufRead, Read};

use flate2::{Decompress, FlushDecompress, Status};

use super::error::corrupt;

/// The unpacked bytes of a gzip stream.
pub struct Gzip<R> {
    input: R,
    inflate: Decompress,
    state: GzipState,
}

#[derive(PartialEq)]
enum GzipState {
    Start,
    Body,
    End,
}

impl<R: BufRead> Gzip<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, inflate: Decompress::new(false), state: GzipState::Start }
    }

    /// The compressed bytes that were not used.
    pub(super) fn into_input(self) -> R {
        self.input
    }

    fn header(&mut self) -> io::Result<()> {
        let mut fixed = [0; 10];
        self.input.read_exact(&mut fixed)?;
        let flags = fixed[3];
        if fixed[..3] != [0x1f, 0x8b, 8] || flags & 0xe0 != 0 {
            return Err(corrupt("no gzip member where one is expected"));
        }
        if flags & 4 != 0 {
            let mut length = [0; 2];
            self.input.read_exact(&mut length)?;
            self.skip(u16::from_le_bytes(length).into())?;
        }
        // The original file name and a comment, each up to a NUL.
        for flag in [8, 16] {
            if flags & flag != 0 {
                self.skip_text()?;
            }
        }
        if flags & 2 != 0 {
            self.skip(2)?;
        }
        Ok(())
    }

    fn skip(&mut self, length: usize) -> io::Result<()> {
        let mut waste = [0; 64];
        let mut left = length;
        while left > 0 {
            let part = left.min(waste.len());
            self.input.read_exact(&mut waste[..part])?;
            left -= part;
        }
        Ok(())
    }

    fn skip_text(&mut self) -> io::Result<()> {
        let mut byte = [1];
        for _ in 0..64 << 10 {
            self.input.read_exact(&mut byte)?;
            if byte == [0] {
                return Ok(());
            }
        }
        Err(corrupt("an endless gzip header"))
    }

    /// Inflates once; the number of bytes that came out.
    fn body(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let input = self.input.fill_buf()?;
            let at_end = input.is_empty();
            let (read_before, written_before) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self
                .inflate
                .decompress(input, buffer, FlushDecompress::None)
                .map_err(|error| corrupt(&format!("broken gzip data: {error}")))?;
            let read = usize::try_from(self.inflate.total_in() - read_before).unwrap_or_default();
            let written = usize::try_from(self.inflate.total_out() - written_before).unwrap_or_default();
            self.input.consume(read);
            if status == Status::StreamEnd {
                self.skip(8)?;
                self.inflate.reset(false);
                self.state = if self.input.fill_buf()?.is_empty() { GzipState::End } else { GzipState::Start };
                return Ok(written);
            }
            if written > 0 {
                return Ok(written);
            }
            if at_end {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if read == 0 {
                return Err(corrupt("broken gzip data: no progress"));
            }
        }
    }
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                GzipState::End => return Ok(0),
                GzipState::Start => {
                    self.header()?;
                    self.state = GzipState::Body;
                }
                GzipState::Body => {
                    let written = self.body(buffer)?;
                    if written > 0 {
                        return Ok(written);
                    }
                }
            }
        }
    }
}
