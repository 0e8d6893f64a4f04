// SPDX-License-Identifier: Apache-2.0
//! The part of a snapshot that describes a replica's state beside its keys: `about` in database 1.

use super::agreed_server::AgreedServer;
use super::clock::Clock;
use super::notifications::Notifications;
use crate::watches::Watches;

const FORMAT: u8 = 5;
/// The format before it, which says nothing of notifications, and the one before that, which says
/// nothing of the group's server either.
const WITHOUT_NOTIFICATIONS: u8 = 4;
const WITHOUT_SERVER: u8 = 3;

/// What a snapshot says of a replica's state beside its keys.
#[derive(Default)]
pub(super) struct About {
    pub clock: Clock,
    /// How often random numbers were seeded.
    pub drawn: u64,
    pub agreed: AgreedServer,
    pub notifications: Notifications,
    pub watches: Watches,
}

/// Encodes the clock, how often random numbers were seeded, the group's server, the notifications,
/// and the watched keys.
pub(super) fn emit(
    clock: &Clock,
    drawn: u64,
    (agreed, notifications): (&AgreedServer, Notifications),
    watches: &Watches,
) -> Vec<u8> {
    let mut about = vec![FORMAT];
    clock.emit(&mut about);
    about.extend_from_slice(&drawn.to_be_bytes());
    agreed.emit(&mut about);
    about.extend_from_slice(&notifications.bits().to_be_bytes());
    about.extend_from_slice(&watches.last().to_be_bytes());
    for (key, version) in watches.all() {
        about.extend_from_slice(&(key.len() as u32).to_be_bytes());
        about.extend_from_slice(key);
        about.extend_from_slice(&version.to_be_bytes());
    }
    about
}

/// Decodes what [`emit`] has encoded.
pub(super) fn parse(about: &[u8]) -> Result<About, String> {
    let (format, rest) = about.split_first().ok_or("they name no format")?;
    if ![WITHOUT_SERVER, WITHOUT_NOTIFICATIONS, FORMAT].contains(format) {
        return Err(format!(
            "they are of format {format}, and this program reads format {FORMAT}: start the \
             version that wrote them"
        ));
    }
    let parsed = Clock::parse(rest).and_then(|(clock, rest)| {
        let (drawn, rest) = rest.split_first_chunk()?;
        let (agreed, rest) = match *format {
            WITHOUT_SERVER => (AgreedServer::default(), rest),
            _ => AgreedServer::parse(rest)?,
        };
        let (notifications, rest) = match *format {
            FORMAT => {
                let (bits, rest) = rest.split_first_chunk()?;
                (Notifications::of_bits(u16::from_be_bytes(*bits))?, rest)
            }
            _ => (Notifications::default(), rest),
        };
        let (last, mut rest) = rest.split_first_chunk()?;
        let mut watched = Vec::new();
        while !rest.is_empty() {
            let (len, behind) = rest.split_first_chunk()?;
            let (key, behind) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            let (version, behind) = behind.split_first_chunk()?;
            watched.push((key.to_vec(), u64::from_be_bytes(*version)));
            rest = behind;
        }
        let last = u64::from_be_bytes(*last);
        let watches = Watches::load(last, watched.into_iter());
        Some(About {
            clock,
            drawn: u64::from_be_bytes(*drawn),
            agreed,
            notifications,
            watches,
        })
    });
    parsed.ok_or_else(|| "what they say of themselves is damaged".into())
}

#[cfg(test)]
mod tests {
    use super::super::fingerprint::tests::server;
    use super::*;

    #[test]
    fn a_snapshot_of_before_knows_no_server_and_no_notifications() {
        let mut agreed = AgreedServer::default();
        agreed.report(1, &[1], server("7.0.15", &[("get", 2)]));
        let clock = Clock::default();
        let mut watches = Watches::default();
        let version = watches.watch(b"key");
        let flags = Notifications::of_bits(5).unwrap();
        let new = emit(&clock, 7, (&agreed, flags), &watches);
        let read = parse(&new).unwrap();
        assert_eq!((read.drawn, &read.agreed), (7, &agreed));
        assert_eq!(read.notifications, flags);

        let mut behind = Vec::new();
        agreed.emit(&mut behind);
        let mut clock_bytes = Vec::new();
        clock.emit(&mut clock_bytes);
        let at = 1 + clock_bytes.len() + 8;
        let end = at + behind.len();
        let mut old = [&new[..end], &new[end + 2..]].concat();
        old[0] = WITHOUT_NOTIFICATIONS;
        let read = parse(&old).unwrap();
        assert_eq!((read.drawn, &read.agreed), (7, &agreed));
        assert_eq!(read.notifications, Notifications::default());
        assert!(read.watches.has(b"key", version));
        let mut strange = new.clone();
        strange[end] = 0xff;
        assert!(parse(&strange).is_err());
        let mut old = [&new[..at], &new[end + 2..]].concat();
        old[0] = WITHOUT_SERVER;
        let read = parse(&old).unwrap();
        assert_eq!((read.drawn, &read.agreed), (7, &AgreedServer::default()));
        assert!(read.watches.has(b"key", version));
        old[0] = FORMAT + 1;
        assert!(parse(&old).map(|_| ()).unwrap_err().contains("format 6"));
    }
}
