// SPDX-License-Identifier: Apache-2.0
//! The thread that fetches another replica's state, while the worker goes on answering.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};

use super::waker::Wake;
use crate::Error;
use crate::transfer::{self, Fetched, Patience, Question};

/// The thread ends when this is dropped.
pub struct Fetcher {
    begun: Sender<Question>,
    ended: Receiver<io::Result<Fetched>>,
    under_way: bool,
}

impl Fetcher {
    /// `wake` is called whenever a fetch has ended.
    pub fn start(
        name: String,
        peers: Vec<SocketAddr>,
        directory: PathBuf,
        wake: Wake,
    ) -> Result<Fetcher, Error> {
        let (begun, questions) = mpsc::channel::<Question>();
        let (tell, ended) = mpsc::channel();
        std::thread::Builder::new().name(name).spawn(move || {
            for question in questions {
                let fetched = transfer::fetch(&peers, question, &directory, Patience::default());
                if tell.send(fetched).is_err() {
                    break;
                }
                wake.wake();
            }
        })?;
        Ok(Fetcher {
            begun,
            ended,
            under_way: false,
        })
    }

    /// Begins one, unless one is under way.
    pub fn begin(&mut self, question: Question) {
        if !self.under_way {
            self.under_way = self.begun.send(question).is_ok();
        }
    }

    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// What came of the fetch under way, if it has ended; told once.
    pub fn ended(&mut self) -> Option<io::Result<Fetched>> {
        let ended = self.ended.try_recv().ok()?;
        self.under_way = false;
        Some(ended)
    }
}
