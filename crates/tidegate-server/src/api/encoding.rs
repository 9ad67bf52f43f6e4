//! Compressed bodies: `content-encoding: gzip` or `zstd`.
//!
//! Decoded as they arrive, frame by frame, into a bounded buffer: what counts against the limits, on one request and
//! on all together, is what comes out, so a small bomb is refused after the first byte too many. What goes in has the
//! same limit, which bounds whatever decodes to nothing.
//!
//! Does not: take lists of encodings, one inside the other.

use std::io::{self, Write};

use axum::body::Body;
use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, StatusCode};
use tidegate_core::limits::{REQUEST_BYTES_MAX, ZSTD_WINDOW_LOG_MAX};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::intake::Intake;
use super::problem::Problem;
use super::request::{RESERVE_STEP, overloaded, read_body, too_large};
use crate::pipeline::ingest::{Ingest, Reservation};

/// What a decoder is asked for at a time.
const OUTPUT_STEP: usize = 32 * 1024;

/// Reads a body to its end, as [`read_body`] does, and decodes it if it is encoded.
pub(super) async fn read_encoded_body(
    headers: &HeaderMap,
    body: Body,
    ingest: &Ingest,
) -> Result<(Bytes, Vec<Reservation>), Problem> {
    let Some(decoding) = Decoding::of(headers, ingest)? else {
        return read_body(headers, body, ingest).await;
    };
    decode(decoding, Intake::new(body, ingest.clock())).await
}

async fn decode(
    mut decoding: Decoding<'_>,
    mut intake: Intake<'_>,
) -> Result<(Bytes, Vec<Reservation>), Problem> {
    let mut received = 0;
    while let Some(data) = intake.next().await? {
        received += data.len();
        let fed = if received > REQUEST_BYTES_MAX { Err(too_large()) } else { decoding.feed(&data) };
        if let Err(problem) = fed {
            drop(decoding);
            intake.discard().await;
            return Err(problem);
        }
    }
    decoding.finish()
}

enum Decoding<'a> {
    Gzip(MultiGzDecoder<Sink<'a>>),
    Zstd(Zstd<'a>),
}

struct Zstd<'a> {
    decoder: Decoder<'static>,
    sink: Sink<'a>,
    /// The last frame has come to its end.
    is_whole: bool,
}

impl<'a> Decoding<'a> {
    fn of(headers: &HeaderMap, ingest: &'a Ingest) -> Result<Option<Self>, Problem> {
        let mut given = headers.get_all(CONTENT_ENCODING).iter();
        let Some(first) = given.next() else { return Ok(None) };
        let name = if given.next().is_none() { first.to_str().unwrap_or_default().trim() } else { "" };
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("identity") {
            return Ok(None);
        }
        let sink = Sink { ingest, out: Vec::new(), reserved: 0, reservations: Vec::new(), refusal: None };
        if is("gzip") || is("x-gzip") {
            return Ok(Some(Self::Gzip(MultiGzDecoder::new(sink))));
        }
        if !is("zstd") {
            let detail = "send the body as gzip or zstd, or without content-encoding";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoding_unsupported", detail));
        }
        let mut decoder = Decoder::new().map_err(|_| overloaded())?;
        decoder.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG_MAX)).map_err(|_| overloaded())?;
        Ok(Some(Self::Zstd(Zstd { decoder, sink, is_whole: true })))
    }

    fn feed(&mut self, data: &[u8]) -> Result<(), Problem> {
        match self {
            Self::Gzip(decoder) => {
                let fed = decoder.write_all(data);
                fed.map_err(|error| decoder.get_mut().refusal.take().unwrap_or_else(|| corrupt(&error)))
            }
            Self::Zstd(zstd) => zstd.feed(data),
        }
    }

    fn finish(self) -> Result<(Bytes, Vec<Reservation>), Problem> {
        let sink = match self {
            Self::Gzip(mut decoder) => {
                let ended = decoder.try_finish();
                ended.map_err(|error| decoder.get_mut().refusal.take().unwrap_or_else(|| corrupt(&error)))?;
                let sink = decoder.get_mut();
                return Ok((std::mem::take(&mut sink.out).into(), std::mem::take(&mut sink.reservations)));
            }
            Self::Zstd(zstd) if zstd.is_whole => zstd.sink,
            Self::Zstd(_) => return Err(corrupt(&io::ErrorKind::UnexpectedEof.into())),
        };
        Ok((sink.out.into(), sink.reservations))
    }
}

impl Zstd<'_> {
    fn feed(&mut self, data: &[u8]) -> Result<(), Problem> {
        let mut step = [0; OUTPUT_STEP];
        let mut input = InBuffer::around(data);
        loop {
            let mut output = OutBuffer::around(&mut step[..]);
            let hint = self.decoder.run(&mut input, &mut output).map_err(|error| corrupt(&error))?;
            self.is_whole = hint == 0;
            let is_full = output.pos() == OUTPUT_STEP;
            let written = self.sink.write_all(output.as_slice());
            written.map_err(|error| self.sink.refusal.take().unwrap_or_else(|| corrupt(&error)))?;
            if input.pos == data.len() && !is_full {
                return Ok(());
            }
        }
    }
}

/// Takes what comes out, within the limits.
struct Sink<'a> {
    ingest: &'a Ingest,
    out: Vec<u8>,
    reserved: usize,
    reservations: Vec<Reservation>,
    refusal: Option<Problem>,
}

impl Write for Sink<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let total = self.out.len() + data.len();
        if total > REQUEST_BYTES_MAX {
            self.refusal = Some(too_large());
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if total > self.reserved {
            let step = (total - self.reserved).max(RESERVE_STEP);
            let Some(reservation) = self.ingest.reserve(step) else {
                self.refusal = Some(overloaded());
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            self.reservations.push(reservation);
            self.reserved += step;
        }
        self.out.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn corrupt(error: &io::Error) -> Problem {
    let detail = format!("the body is not what its content-encoding says, or was cut short: {error}");
    Problem::new(StatusCode::BAD_REQUEST, "encoding_corrupt", detail)
}
