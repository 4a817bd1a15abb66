//! (client) Calls of libvirt's remote protocol over a stream, one after another.

use crate::controllers::peerpod::gate::call_time;
use crate::controllers::peerpod::libvirt::xdr::{Malformed, Reader, Value, Writer};
use crate::k8s::leader::Leadership;
use std::io::ErrorKind;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

const PROGRAM: u32 = 0x2000_8086;
const VERSION: u32 = 1;
const CALL: u32 = 0;
const REPLY: u32 = 1;
/// Maximum size of an answer. libvirt limits a text, for example a description of a domain, to 4 MiB.
const MESSAGE_MAX: usize = 5 << 20;

/// The procedures that the controller calls, with their numbers.
#[derive(Clone, Copy, Debug)]
pub enum Procedure {
    ConnectOpen = 1,
    ConnectGetCapabilities = 7,
    DomainGetXmlDesc = 14,
    DomainLookupByUuid = 24,
    DomainUndefine = 35,
    AuthList = 66,
    StoragePoolLookupByName = 84,
    StorageVolDelete = 94,
    StorageVolLookupByName = 95,
    StorageVolLookupByPath = 97,
    StorageVolGetXmlDesc = 99,
    DomainUndefineFlags = 231,
    DomainDestroyFlags = 234,
    ConnectListAllDomains = 273,
    ConnectListAllStoragePools = 281,
    StoragePoolListAllVolumes = 282,
}

/// The failure of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RpcError {
    /// libvirt has answered with an error.
    Answered {
        /// Its number, see [`super::code`].
        code: i32,
        /// Its message.
        message: String,
    },
    /// There is no answer of libvirt. The connection cannot be used any more.
    Broken(String),
}

impl From<Malformed> for RpcError {
    fn from(_: Malformed) -> Self {
        Self::Broken("the answer is not one of libvirt".to_owned())
    }
}

impl From<std::io::Error> for RpcError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(match error.kind() {
            ErrorKind::UnexpectedEof => "the connection has ended".to_owned(),
            _ => error.to_string(),
        })
    }
}

/// A connection.
pub struct Rpc<S> {
    stream: S,
    leadership: Leadership,
    serial: u32,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Rpc<S> {
    /// A connection over that stream.
    pub fn new(stream: S, leadership: Leadership) -> Self {
        Self {
            stream,
            leadership,
            serial: 0,
        }
    }

    /// Calls a procedure, if this process leads.
    pub async fn call<T: Value>(
        &mut self,
        procedure: Procedure,
        arguments: Writer,
    ) -> Result<T, RpcError> {
        self.serial = self.serial.wrapping_add(1);
        let header = [PROGRAM, VERSION, procedure as u32, CALL, self.serial, 0];
        let header = header.into_iter().flat_map(u32::to_be_bytes);
        let message: Vec<u8> = header.chain(arguments.0).collect();
        let Some(time) = call_time(&self.leadership) else {
            let message = "this operator is not the leader, so it sends nothing";
            return Err(RpcError::Broken(message.to_owned()));
        };
        let answer = timeout(time, self.exchange(&message)).await;
        let late = |_| RpcError::Broken("libvirt has not answered in time".to_owned());
        result(&answer.map_err(late)??, procedure, self.serial)
    }

    async fn exchange(&mut self, message: &[u8]) -> Result<Vec<u8>, RpcError> {
        let length = u32::try_from(message.len() + 4).map_err(|_| Malformed)?;
        let message = [&length.to_be_bytes()[..], message].concat();
        self.stream.write_all(&message).await?;
        self.stream.flush().await?;
        let length = usize::try_from(self.stream.read_u32().await?).map_err(|_| Malformed)?;
        let length = length.checked_sub(4).filter(|it| *it <= MESSAGE_MAX);
        let mut answer = vec![0; length.ok_or(Malformed)?];
        self.stream.read_exact(&mut answer).await?;
        Ok(answer)
    }
}

/// The result in an answer. It must be the one to that call.
fn result<T: Value>(answer: &[u8], procedure: Procedure, serial: u32) -> Result<T, RpcError> {
    let mut reader = Reader(answer);
    for expected in [PROGRAM, VERSION, procedure as u32, REPLY, serial] {
        if reader.read::<u32>()? != expected {
            return Err(Malformed.into());
        }
    }
    match reader.read::<u32>()? {
        0 => {
            let value = reader.read()?;
            reader.end()?;
            Ok(value)
        }
        1 => {
            let (code, _domain): (i32, i32) = (reader.read()?, reader.read()?);
            let message = reader.read::<Option<_>>()?.unwrap_or_default();
            Err(RpcError::Answered { code, message })
        }
        _ => Err(Malformed.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::peerpod::libvirt::xdr::Domain;
    use proptest::prelude::*;
    use std::time::Duration;

    fn answer(serial: u32, status: u32, body: Writer) -> Vec<u8> {
        let header = [PROGRAM, VERSION, 7, REPLY, serial, status];
        let header = header.into_iter().flat_map(u32::to_be_bytes);
        header.chain(body.0).collect()
    }

    /// The result of a call to a service that answers with these bytes, and then closes the connection or not.
    async fn called(
        bytes: Vec<u8>,
        closes: bool,
        leadership: Leadership,
    ) -> Result<String, RpcError> {
        let (stream, mut service) = tokio::io::duplex(1 << 10);
        let serve = tokio::spawn(async move {
            let length = service.read_u32().await.unwrap() as usize;
            service.read_exact(&mut vec![0; length - 4]).await.unwrap();
            service.write_all(&bytes).await.unwrap();
            if !closes {
                std::future::pending::<()>().await;
            }
        });
        let mut rpc = Rpc::new(stream, leadership);
        let result = rpc.call(Procedure::ConnectGetCapabilities, Writer::default());
        let result = result.await;
        serve.abort();
        result
    }

    fn framed(answer: &[u8]) -> Vec<u8> {
        let length = u32::try_from(answer.len() + 4).unwrap();
        [&length.to_be_bytes()[..], answer].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn lost_late_foreign_and_huge_answers_end_the_connection() {
        let text = || Writer::default().text("capabilities");
        let good = framed(&answer(1, 0, text()));
        let leads = Leadership::alone;
        assert_eq!(
            called(good.clone(), false, leads()).await.unwrap(),
            "capabilities"
        );
        let error = Writer::default()
            .number(42)
            .number(10)
            .number(1)
            .text("no domain");
        let expected = RpcError::Answered {
            code: 42,
            message: "no domain".to_owned(),
        };
        assert_eq!(
            called(framed(&answer(1, 1, error)), false, leads()).await,
            Err(expected)
        );
        for (bytes, closes, leadership, part) in [
            (
                framed(&answer(2, 0, text())),
                false,
                leads(),
                "not one of libvirt",
            ),
            (
                framed(&answer(1, 2, text())),
                false,
                leads(),
                "not one of libvirt",
            ),
            (
                framed(&answer(1, 0, text().number(0))),
                false,
                leads(),
                "not one of libvirt",
            ),
            (
                u32::MAX.to_be_bytes().to_vec(),
                false,
                leads(),
                "not one of libvirt",
            ),
            (vec![0; 4], false, leads(), "not one of libvirt"),
            (
                b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
                false,
                leads(),
                "not one of libvirt",
            ),
            (good[..good.len() - 1].to_vec(), true, leads(), "has ended"),
            (Vec::new(), true, leads(), "has ended"),
            (
                Vec::new(),
                false,
                Leadership::leading_for(Duration::from_millis(300)),
                "in time",
            ),
            (good, false, Leadership::waiting(), "not the leader"),
        ] {
            let result = called(bytes, closes, leadership).await;
            let Err(RpcError::Broken(message)) = result else {
                panic!("{part}: {result:?}");
            };
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    proptest! {
            #[test]
            fn any_answer_is_read_or_rejected(bytes: Vec<u8>, status in 0u32..3) {
                let body = Writer(bytes);
    let _ = result::<Vec<Domain>>(&answer(1, status, body), Procedure::ConnectGetCapabilities, 1);
            }
        }
}
