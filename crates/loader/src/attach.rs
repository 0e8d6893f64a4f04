// SPDX-License-Identifier: Apache-2.0
//! Programs at interfaces: attached, replaced in place, taken off.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::XdpLink;
use aya::programs::{Xdp, XdpFlags};

use crate::interface::Interface;
use crate::ip;
use crate::object::{Object, Result, whole};
use crate::occupant::Occupant;
use crate::sys;
use crate::veth;

/// Where in the interface's receive path a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel makes a packet of the frame.
    Native,
    /// In the stack, on the packet that the kernel made: any interface can, at the price of that.
    Generic,
}

impl Mode {
    pub(crate) const ALL: [Mode; 2] = [Mode::Native, Mode::Generic];

    /// For `status` and for names of pins.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Native => "native",
            Mode::Generic => "generic",
        }
    }

    const fn flags(self) -> XdpFlags {
        match self {
            Mode::Native => XdpFlags::DRV_MODE,
            Mode::Generic => XdpFlags::SKB_MODE,
        }
    }
}

/// A program at an interface.
#[derive(Debug)]
pub struct Attachment {
    /// How it runs.
    pub mode: Mode,
    /// Whether an earlier process had attached a program here, which this one has replaced.
    pub replaced: bool,
    /// Why it doesn't run in the driver.
    pub why_generic: Option<String>,
    /// The program leaves the interface when this goes, unless the link is pinned.
    _link: Link,
}

#[derive(Debug)]
enum Link {
    Own(#[allow(dead_code)] XdpLink),
    Pinned(#[allow(dead_code)] PinnedLink),
}

impl Object {
    /// Puts the role's program at an interface, until the attachment is dropped: in the driver
    /// where that is possible, otherwise in the stack.
    pub fn attach(&mut self, interface: &Interface) -> Result<Attachment> {
        let (link, mode, why_generic) = self.attach_new(interface, None)?;
        Ok(Attachment {
            mode,
            replaced: false,
            why_generic,
            _link: Link::Own(link),
        })
    }

    /// Puts the role's program at an interface, for as long as the link is pinned in `pins`. Where
    /// one is, its program is replaced in one step: no frame passes without one.
    pub fn attach_kept(&mut self, interface: &Interface, pins: &Path) -> Result<Attachment> {
        for mode in Mode::ALL {
            let path = pin_path(pins, mode, interface);
            let Ok(pinned) = PinnedLink::from_pin(&path) else {
                continue;
            };
            if let Some(kept) = self.replace(pinned)? {
                return Ok(Attachment {
                    mode,
                    replaced: true,
                    why_generic: None,
                    _link: Link::Own(kept),
                });
            }
            // The interface that it belonged to is gone, though its number is in use again.
            fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let (link, mode, why_generic) = self.attach_new(interface, Some(pins))?;
        let path = pin_path(pins, mode, interface);
        let link = FdLink::try_from(link).map_err(|e| whole(&e))?;
        let pinned = link
            .pin(&path)
            .map_err(|e| format!("{}: {}", path.display(), whole(&e)))?;
        Ok(Attachment {
            mode,
            replaced: false,
            why_generic,
            _link: Link::Pinned(pinned),
        })
    }

    /// `None` if the link's interface is gone.
    fn replace(&mut self, pinned: PinnedLink) -> Result<Option<XdpLink>> {
        let program = self.xdp(self.role().name())?;
        let link = XdpLink::try_from(FdLink::from(pinned)).map_err(|e| whole(&e))?;
        match program.attach_to_link(link) {
            Ok(id) => program.take_link(id).map(Some).map_err(|e| whole(&e)),
            Err(_) => Ok(None),
        }
    }

    /// Where there is a directory of `pins` a driver that refuses is asked for its words.
    fn attach_new(
        &mut self,
        interface: &Interface,
        pins: Option<&Path>,
    ) -> Result<(XdpLink, Mode, Option<String>)> {
        let program = self.xdp(self.role().name())?;
        let mut refused = Vec::new();
        for mode in Mode::ALL {
            match program.attach_to_if_index(interface.index, mode.flags()) {
                Ok(id) => {
                    let link = program.take_link(id).map_err(|e| whole(&e))?;
                    return Ok((link, mode, refused.pop()));
                }
                Err(e) if mode == Mode::Native => {
                    let said = pins.and_then(|pins| words_of_driver(program, interface, pins));
                    refused.push(said.unwrap_or_else(|| whole(&e)));
                }
                Err(e) => refused.push(whole(&e)),
            }
        }
        let there = match Occupant::of(interface) {
            Ok(Some(occupant)) => format!(". {} is there: stop its node", occupant.described()),
            _ if too_long_frames(&refused) => format!(
                ". Its frames are too long for programs: `ip link set {} mtu 1500`, also at the \
                 other end",
                interface.name
            ),
            _ => format!(
                ". See what is attached there with `ip link show {}`",
                interface.name
            ),
        };
        Err(format!(
            "{} takes no XDP program: in the driver: {}; in the stack: {}{there}, or use the udp \
             plane",
            interface.name, refused[0], refused[1]
        ))
    }
}

/// Whether one of these refusals is about the MTU, which drivers limit for programs: of their own
/// words, or the error ERANGE.
fn too_long_frames(refused: &[String]) -> bool {
    let says = |why: &String| why.contains("MTU") || why.contains("Numerical result out of range");
    refused.iter().any(says)
}

/// Why a driver refuses a program, in its own words: links of programs don't bring them along, `ip`
/// does, which takes a program that is pinned.
fn words_of_driver(program: &mut Xdp, interface: &Interface, pins: &Path) -> Option<String> {
    let path = pins.join("refused");
    let _ = fs::remove_file(&path);
    program.pin(&path).ok()?;
    let device = format!("link set dev {} xdpdrv", interface.name);
    let attached = ip::run(&[], &[format!("{device} pinned {}", path.display())]);
    let _ = fs::remove_file(&path);
    let output = attached.ok()?;
    if output.status.success() {
        let _ = ip::run(&[], &[format!("{device} off")]);
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut words = said.lines().filter_map(|line| line.strip_prefix("Error: "));
    let words = words.next()?.trim_end_matches('.');
    let driver = veth::driver(&interface.name).unwrap_or_else(|| "unknown".to_owned());
    Some(format!("its driver ({driver}) says {words:?}"))
}

/// Takes a program off its interface, and removes the pin of its link. Without its pin the program
/// would leave, too, but a moment later than the pin.
pub(crate) fn remove_link(pin: &Path) -> io::Result<()> {
    // Where this fails the interface is gone, or the pin is of something else.
    let _ = sys::detach_pinned_link(pin);
    fs::remove_file(pin)
}

pub(crate) fn pin_path(pins: &Path, mode: Mode, interface: &Interface) -> PathBuf {
    pins.join(format!("link-{}-{}", mode.name(), interface.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_the_mtu_is_recognized() {
        let refused =
            |why: &str| too_long_frames(&[why.to_owned(), "Operation not supported".to_owned()]);
        assert!(refused(
            "its driver (veth) says \"Peer MTU is too large to set XDP\""
        ));
        assert!(refused(
            "bpf_link_create failed: Numerical result out of range (os error 34)"
        ));
        assert!(!refused("Device or resource busy (os error 16)"));
    }
}
