// SPDX-License-Identifier: Apache-2.0
//! Moments to which a cluster is brought back, as people name them.

use std::str::FromStr;

use paxos::Instance;

use super::record::GroupPartition;
use crate::utc;

/// A moment that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A time, in ms since 1970.
    Time(u64),
    /// When the only partition had executed all before this instance.
    Instance(Instance),
    /// When this partition had.
    InstanceOf(GroupPartition, Instance),
}

/// The moment as the archive has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutoff {
    /// Records of a later time don't count, in ms since 1970.
    pub time_ms: u64,
    /// From this partition only what is before an instance counts.
    pub below: Option<(GroupPartition, Instance)>,
}

impl Cutoff {
    /// Returns the instance before which values of a partition count.
    pub fn end(&self, place: GroupPartition) -> Instance {
        match self.below {
            Some((of, end)) if of == place => end,
            _ => Instance::MAX,
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    /// Reads a time like `2026-11-28T19:00:05.250Z`, an instance, or `GROUP/PARTITION/INSTANCE`.
    fn from_str(text: &str) -> Result<Moment, String> {
        let moment = match text.split('/').collect::<Vec<_>>()[..] {
            [instance] if instance.bytes().all(|b| b.is_ascii_digit()) => {
                instance.parse().ok().map(Moment::Instance)
            }
            [time] => utc::parse(time).map(Moment::Time),
            [group, pid, instance] => {
                let place = group.parse().ok().zip(pid.parse().ok());
                let both = place.zip(instance.parse().ok());
                both.map(|(place, instance)| Moment::InstanceOf(place, instance))
            }
            _ => None,
        };
        moment.ok_or_else(|| {
            "say a time in UTC, like 2026-11-28T19:00:05Z, an instance, or \
             GROUP/PARTITION/INSTANCE"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_or_instances() {
        assert_eq!("1970-01-01T00:00:02Z".parse(), Ok(Moment::Time(2_000)));
        assert_eq!("512".parse(), Ok(Moment::Instance(512)));
        assert_eq!("3/1/9".parse(), Ok(Moment::InstanceOf((3, 1), 9)));
        for wrong in ["", "now", "3/9", "3/1/", "70000/1/9", "1/2/3/4"] {
            assert!(wrong.parse::<Moment>().is_err(), "{wrong}");
        }
    }
}
