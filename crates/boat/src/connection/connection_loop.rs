//! Loops that drive the connections: one per thread, each over slots of its own.
//!
//! A turn visits the connections that have work: bytes in the socket, a push, a timer. Each is
//! read, advanced and written once, with everything that is ready for it. One read buffer and one
//! pair of write buffers serve them all.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use futures_util::task::waker_ref;
use parking_lot::{Mutex, MutexGuard};
use protocol::Timestamp;
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::driver::{ConnectionDriver, DriverParts, ReadStep};
use super::ready_queue::ReadyQueue;
use super::timer_wheel::{Entry, PendingEntries, TimerWheel};
use super::{Connection, ConnectionState};
use crate::door::arrivals::ClientSocket;

/// Bytes of one read.
const READ_BYTES: usize = 64 * 1024;
/// Connections of one turn, before other tasks of the thread get theirs.
const CONNECTIONS_A_TURN: usize = 256;
/// Bytes read in one poll over all its connections, before timers, pushes and other tasks of the
/// thread get theirs.
const BYTES_A_POLL: usize = 2 * 1024 * 1024;
/// Reads of one socket in a turn, before other sockets get theirs.
const READS_A_TURN: usize = 4;
/// Rounds of reading, acting and writing for one connection in a turn, as an answer may bring more.
const ROUNDS_A_TURN: usize = 4;
/// Capacity that a write buffer keeps between turns.
const WRITE_BYTES_KEPT: usize = 256 * 1024;

/// The loops of a boat.
pub(crate) struct ConnectionLoops {
    inboxes: Vec<Arc<LoopInbox>>,
    next: AtomicUsize,
}

/// Work of one loop: new connections, and those that are ready.
pub(crate) struct LoopInbox {
    queue: Arc<ReadyQueue>,
    /// `None` once the loop has ended: nobody serves an arrival any more.
    arrivals: Mutex<Option<Vec<Slot>>>,
}

/// State of a connection during its turn.
type LockedState<'a> = MutexGuard<'a, ConnectionState>;

/// A connection in its loop.
struct Slot {
    driver: ConnectionDriver,
    /// `None` once the socket is gone and the session settles with stations and carriers.
    socket: Option<ClientSocket>,
    timers: PendingEntries,
}

impl ConnectionLoops {
    pub(crate) fn new(count: usize) -> ConnectionLoops {
        let inbox = || LoopInbox {
            queue: Arc::default(),
            arrivals: Mutex::new(Some(Vec::new())),
        };
        ConnectionLoops {
            inboxes: (0..count.max(1)).map(|_| Arc::new(inbox())).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Futures of the loops, each to be spawned once.
    pub(crate) fn run<'a>(
        &'a self,
        parts: &'a Arc<DriverParts>,
    ) -> impl Iterator<Item = impl Future<Output = ()> + use<>> + 'a {
        let run =
            |inbox: &Arc<LoopInbox>| ConnectionLoop::new(Arc::clone(parts), Arc::clone(inbox));
        // The loop bounds its own turns.
        (self.inboxes.iter()).map(move |inbox| tokio::task::unconstrained(run(inbox)))
    }

    /// Inbox of the next loop, round-robin.
    pub(crate) fn next(&self) -> &LoopInbox {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.inboxes[next % self.inboxes.len()]
    }
}

impl LoopInbox {
    pub(crate) fn queue(&self) -> &Arc<ReadyQueue> {
        &self.queue
    }

    /// Hands a connection over to the loop.
    pub(crate) fn add(&self, driver: ConnectionDriver, socket: ClientSocket) {
        let slot = Slot {
            driver,
            socket: Some(socket),
            timers: PendingEntries::default(),
        };
        if let Some(arrivals) = &mut *self.arrivals.lock() {
            arrivals.push(slot);
        }
        self.queue.wake();
    }

    fn take_arrivals(&self) -> Vec<Slot> {
        let mut arrivals = self.arrivals.lock();
        arrivals.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops arrivals that the loop has not taken.
    fn close(&self) {
        let arrivals = self.arrivals.lock().take();
        drop(arrivals);
    }
}

struct ConnectionLoop {
    parts: Arc<DriverParts>,
    inbox: Arc<LoopInbox>,
    slots: Slab<Slot>,
    wheel: TimerWheel,
    sleep: Pin<Box<Sleep>>,
    sleeps_until: Option<Timestamp>,
    /// Ready slots of this turn and the next ones, in the order in which they became ready.
    ready: Vec<u32>,
    buffers: Buffers,
}

/// Buffers shared by the loop's connections, one connection at a time.
struct Buffers {
    read: Box<[MaybeUninit<u8>]>,
    /// Bytes read in this poll.
    count: usize,
    /// Write buffers: plain and encrypted.
    write: [BytesMut; 2],
}

impl ConnectionLoop {
    fn new(parts: Arc<DriverParts>, inbox: Arc<LoopInbox>) -> ConnectionLoop {
        ConnectionLoop {
            wheel: TimerWheel::new(parts.connections.now()),
            parts,
            inbox,
            slots: Slab::new(),
            sleep: Box::pin(sleep_until(Instant::now())),
            sleeps_until: None,
            ready: Vec::new(),
            buffers: Buffers {
                read: Box::new_uninit_slice(READ_BYTES),
                count: 0,
                write: Default::default(),
            },
        }
    }

    /// Takes new work. False: there is none, and the next push wakes the loop.
    fn take(&mut self, cx: &Context<'_>) -> bool {
        self.inbox.queue.take(&mut self.ready, cx);
        for slot in self.inbox.take_arrivals() {
            let connection = Arc::clone(slot.driver.connection());
            let key = self.slots.insert(slot) as u32;
            connection.set_slot(key);
            self.ready.push(key);
        }
        !self.ready.is_empty()
    }

    fn turn(&mut self, key: u32, now: Timestamp) {
        let Some(slot) = self.slots.get_mut(key as usize) else {
            return;
        };
        self.parts.metrics.turns.increment(1);
        // A panic that one client triggers ends its connection, and no other.
        let turn = AssertUnwindSafe(|| slot.turn(&mut self.buffers, now));
        let deadline = catch_unwind(turn).ok().flatten();
        let Some(deadline) = deadline.filter(|_| !self.parts.connections.is_abandoned()) else {
            let slot = self.slots.remove(key as usize);
            let _ = catch_unwind(AssertUnwindSafe(move || drop(slot)));
            // Frees the memory of a reconnect storm once it is over.
            if self.slots.is_empty() {
                self.slots = Slab::new();
            }
            return;
        };
        if slot.timers.add(deadline) {
            self.wheel.insert(deadline, key);
        }
    }

    fn ring(&mut self, now: Timestamp) {
        let (slots, ready) = (&mut self.slots, &mut self.ready);
        self.wheel.advance(now, |Entry { at, key }| {
            if let Some(slot) = slots.get_mut(key as usize)
                && slot.timers.ring(at)
            {
                ready.push(key);
            }
        });
    }

    /// Sleeps until the first timer; reset only if it would ring too late.
    fn poll_sleep(&mut self, cx: &mut Context<'_>, now: Timestamp) -> Poll<()> {
        let Some(next) = self.wheel.next() else {
            return Poll::Pending;
        };
        if self
            .sleeps_until
            .is_none_or(|wake_at| next < wake_at || wake_at <= now)
        {
            self.sleeps_until = Some(next);
            self.sleep.as_mut().reset(Instant::now() + next.since(now));
        }
        self.sleep.as_mut().poll(cx)
    }
}

impl Drop for ConnectionLoop {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Future for ConnectionLoop {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut budget = CONNECTIONS_A_TURN;
        this.buffers.count = 0;
        while budget > 0 && this.buffers.count < BYTES_A_POLL {
            let now = this.parts.connections.now();
            this.ring(now);
            if !this.take(cx) {
                if this.poll_sleep(cx, now).is_pending() {
                    return Poll::Pending;
                }
                continue;
            }
            let mut count = 0;
            while count < budget && this.buffers.count < BYTES_A_POLL {
                let Some(&key) = this.ready.get(count) else {
                    break;
                };
                this.turn(key, now);
                count += 1;
            }
            this.ready.drain(..count);
            budget -= count;
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Slot {
    /// Takes a turn. Returns the next deadline, or `None` if the connection is over.
    ///
    /// A turn locks its connection once, and unlocks it for the socket: for reads, writes, and TLS.
    /// So nobody who pushes to it waits longer than for the frames of one read.
    fn turn(&mut self, buffers: &mut Buffers, now: Timestamp) -> Option<Timestamp> {
        let connection = Arc::clone(self.driver.connection());
        connection.begin_turn();
        let waker = waker_ref(&connection);
        let cx = &mut Context::from_waker(&waker);
        let state = &mut connection.lock();
        self.driver.lend(&mut buffers.write);
        // Received bytes are handled before deadlines: after a pause, acknowledgements and pings
        // waiting in the socket count. Once per turn: later arrivals are for the next one.
        let has_heard_all = self.read(state, cx, buffers, now);
        let mut is_quiet = false;
        for _ in 0..ROUNDS_A_TURN {
            self.driver.act(state, now);
            let has_written = self.write(state, cx, now);
            let has_rung = (self.driver).check_time(&mut state.session, has_heard_all, now);
            if self.driver.is_gone() {
                self.end_socket(state, cx);
            }
            is_quiet = !has_written && !has_rung;
            if is_quiet {
                break;
            }
        }
        // A connection that always has more continues in the next turn.
        if !is_quiet {
            Connection::wake(&connection);
        }
        self.driver.give_back(&mut buffers.write);
        for buffer in &mut buffers.write {
            if buffer.capacity() > WRITE_BYTES_KEPT {
                *buffer = BytesMut::new();
            }
        }
        self.driver.report();
        let is_over = self.driver.is_gone() && state.session.is_settled();
        // No deadline is one that never comes.
        let deadline = self.driver.timeout(&state.session, now);
        (!is_over).then(|| deadline.unwrap_or(Timestamp::MAX))
    }

    /// Reads what has come, within bounds. Returns whether that was all.
    fn read(
        &mut self,
        state: &mut LockedState<'_>,
        cx: &mut Context<'_>,
        buffers: &mut Buffers,
        now: Timestamp,
    ) -> bool {
        for _ in 0..READS_A_TURN {
            // Includes frames left over from the turn before.
            match self.driver.handle_frames(&mut state.session, now) {
                ReadStep::All => {}
                ReadStep::Some => break,
                ReadStep::Over if self.driver.is_gone() => return true,
                ReadStep::Over => break,
            }
            let Some(socket) = &mut self.socket else {
                return true;
            };
            if self.driver.has_ended() || self.driver.pauses(now) {
                return true;
            }
            let driver = &mut self.driver;
            let count = MutexGuard::unlocked(state, || {
                let mut chunk = ReadBuf::uninit(&mut buffers.read);
                let result = Pin::new(&mut socket.stream).poll_read(cx, &mut chunk);
                if let Poll::Ready(Ok(())) = result
                    && !chunk.filled().is_empty()
                {
                    driver.receive(chunk.filled_mut(), now);
                }
                // A socket that fails has ended.
                result.map(|_| chunk.filled().len())
            });
            match count {
                Poll::Ready(0) => self.driver.handle_end(&mut state.session, now),
                Poll::Ready(count) => buffers.count += count,
                Poll::Pending => return true,
            }
        }
        Connection::wake(self.driver.connection());
        false
    }

    /// Writes ready bytes. Returns whether the session made progress.
    fn write(&mut self, state: &mut LockedState<'_>, cx: &mut Context<'_>, now: Timestamp) -> bool {
        let mut has_progress = false;
        loop {
            let Some(socket) = &mut self.socket else {
                return has_progress;
            };
            let driver = &mut self.driver;
            let flush = MutexGuard::unlocked(state, || -> Poll<io::Result<()>> {
                driver.fill(now);
                while !driver.unwritten().is_empty() {
                    let stream = Pin::new(&mut socket.stream);
                    match ready!(stream.poll_write(cx, driver.unwritten()))? {
                        0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                        count => driver.wrote(count, now),
                    }
                }
                Poll::Ready(Ok(()))
            });
            match flush {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    self.driver.handle_lost(&mut state.session, now);
                    return true;
                }
                Poll::Pending => return has_progress,
            }
            has_progress |= self.driver.handle_flushed(&mut state.session, now);
            if !self.driver.has_more(now) {
                break;
            }
        }
        if let Some(socket) = &mut self.socket
            && self.driver.has_said_all()
        {
            let stream = Pin::new(&mut socket.stream);
            match MutexGuard::unlocked(state, || stream.poll_shutdown(cx)) {
                Poll::Ready(Ok(())) => self.driver.handle_shut(),
                Poll::Ready(Err(_)) => self.driver.handle_lost(&mut state.session, now),
                Poll::Pending => {}
            }
        }
        has_progress
    }

    /// Closes the socket of a connection that is gone.
    fn end_socket(&mut self, state: &mut LockedState<'_>, cx: &mut Context<'_>) {
        let driver = &mut self.driver;
        if let Some(mut socket) = self.socket.take() {
            MutexGuard::unlocked(state, || {
                // For example the answer to a close frame, or an alert: as far as the socket takes
                // it at once.
                driver.seal();
                let _ = Pin::new(&mut socket.stream).poll_write(cx, driver.unwritten());
                driver.clear();
                drop(socket);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::session::Session;

    use super::*;

    /// Memory of an idle connection: these types, the runtime's part for its socket, and an entry
    /// of the map and of the wheel. The figures are today's: a larger one is paid a hundred
    /// thousand times.
    #[test]
    fn an_idle_connection_is_small() {
        let sizes = [
            ("Slot", size_of::<Slot>(), 416),
            ("ConnectionDriver", size_of::<ConnectionDriver>(), 320),
            ("ClientSocket", size_of::<ClientSocket>(), 64),
            ("Connection", size_of::<Connection>(), 360),
            ("Session", size_of::<Session>(), 272),
        ];
        for (name, size, max) in sizes {
            assert!(size <= max, "{name}: {size}");
        }
    }
}
