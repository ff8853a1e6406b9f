//! Loops that drive the connections: one per thread, each over slots of its own.
//!
//! A turn visits the connections that have work: bytes in the socket, a push, a timer. Each is
//! read, advanced and written once, with everything that is ready for it. One read buffer and one
//! pair of write buffers serve them all.

use std::fmt;
use std::future::Future;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::BytesMut;
use futures_util::task::waker_ref;
use parking_lot::Mutex;
use protocol::Timestamp;
use slab::Slab;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::boat::Boat;
use crate::connection::Connection;
use crate::connection::driver::{ConnectionDriver, ReadStep};
use crate::connection::timer_wheel::{Entry, PendingEntries, TimerWheel};
use crate::door::connection_limit::ConnectionPermit;
use crate::door::listener::client_stream::Socket;

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
#[derive(Debug)]
pub(crate) struct ConnectionLoops {
    queues: Vec<Arc<ReadyQueue>>,
    next: AtomicUsize,
}

/// Work of one loop: new connections, and those that are ready.
#[derive(Default)]
pub(crate) struct ReadyQueue(Mutex<LoopInbox>);

#[derive(Default)]
struct LoopInbox {
    arrivals: Vec<Slot>,
    ready: Vec<u32>,
    /// Waker of the loop while it sleeps.
    waker: Option<Waker>,
    /// True once the loop has ended: nobody serves an arrival any more.
    is_closed: bool,
}

/// A socket and its place among the connections.
pub(crate) type ClientSocket = Socket<ConnectionPermit>;

/// A connection in its loop.
struct Slot {
    driver: ConnectionDriver,
    /// `None` once the socket is gone and the session settles with stations and carriers.
    socket: Option<ClientSocket>,
    timers: PendingEntries,
}

impl ConnectionLoops {
    pub(crate) fn new(count: usize) -> ConnectionLoops {
        ConnectionLoops {
            queues: (0..count.max(1)).map(|_| Arc::default()).collect(),
            next: AtomicUsize::new(0),
        }
    }

    /// Futures of the loops, each to be spawned once.
    pub(crate) fn run<'a>(
        &'a self,
        boat: &'a Arc<Boat>,
    ) -> impl Iterator<Item = impl Future<Output = ()> + use<>> + 'a {
        let run =
            |queue: &Arc<ReadyQueue>| ConnectionLoop::new(Arc::clone(boat), Arc::clone(queue));
        // The loop bounds its own turns.
        (self.queues.iter()).map(move |queue| tokio::task::unconstrained(run(queue)))
    }

    /// Queue of the next loop, round-robin.
    pub(crate) fn next(&self) -> &Arc<ReadyQueue> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        &self.queues[next % self.queues.len()]
    }
}

impl fmt::Debug for ReadyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyQueue").finish_non_exhaustive()
    }
}

impl ReadyQueue {
    /// Hands a connection over to the loop.
    pub(crate) fn add(&self, driver: ConnectionDriver, socket: ClientSocket) {
        let slot = Slot {
            driver,
            socket: Some(socket),
            timers: PendingEntries::default(),
        };
        let rejected_slot = self.update_inbox(|inbox| {
            if inbox.is_closed {
                Some(slot)
            } else {
                inbox.arrivals.push(slot);
                None
            }
        });
        drop(rejected_slot);
    }

    pub(crate) fn push(&self, slot: u32) {
        self.update_inbox(|inbox| inbox.ready.push(slot));
    }

    fn update_inbox<T>(&self, update: impl FnOnce(&mut LoopInbox) -> T) -> T {
        let mut inbox = self.0.lock();
        let answer = update(&mut inbox);
        let waker = inbox.waker.take();
        drop(inbox);
        if let Some(waker) = waker {
            waker.wake();
        }
        answer
    }

    /// Drops arrivals that the loop has not taken.
    fn close(&self) {
        let arrivals = self.update_inbox(|inbox| {
            inbox.is_closed = true;
            std::mem::take(&mut inbox.arrivals)
        });
        drop(arrivals);
    }
}

struct ConnectionLoop {
    boat: Arc<Boat>,
    queue: Arc<ReadyQueue>,
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
    fn new(boat: Arc<Boat>, queue: Arc<ReadyQueue>) -> ConnectionLoop {
        ConnectionLoop {
            wheel: TimerWheel::new(boat.now()),
            boat,
            queue,
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
        let mut inbox = self.queue.0.lock();
        if inbox.ready.is_empty() && inbox.arrivals.is_empty() {
            if self.ready.is_empty() {
                inbox.waker = Some(cx.waker().clone());
            }
            return !self.ready.is_empty();
        }
        if self.ready.is_empty() {
            std::mem::swap(&mut self.ready, &mut inbox.ready);
        } else {
            self.ready.append(&mut inbox.ready);
        }
        let arrivals = std::mem::take(&mut inbox.arrivals);
        drop(inbox);
        for slot in arrivals {
            let connection = Arc::clone(slot.driver.connection());
            let key = self.slots.insert(slot) as u32;
            connection.set_slot(key);
            self.ready.push(key);
        }
        true
    }

    fn turn(&mut self, key: u32, now: Timestamp) {
        let Some(slot) = self.slots.get_mut(key as usize) else {
            return;
        };
        self.boat.metrics.turns.increment(1);
        // A panic that one client triggers ends its connection, and no other.
        let turn = AssertUnwindSafe(|| {
            if slot.turn(&mut self.buffers, now) {
                None
            } else {
                Some(slot.driver.timeout(now))
            }
        });
        let deadline = catch_unwind(turn).ok().flatten();
        let Some(deadline) = deadline.filter(|_| !self.boat.is_abandoned()) else {
            let slot = self.slots.remove(key as usize);
            let _ = catch_unwind(AssertUnwindSafe(move || drop(slot)));
            // Frees the memory of a reconnect storm once it is over.
            if self.slots.is_empty() {
                self.slots = Slab::new();
            }
            return;
        };
        if let Some(deadline) = deadline
            && slot.timers.add(deadline)
        {
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
        self.queue.close();
    }
}

impl Future for ConnectionLoop {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let mut budget = CONNECTIONS_A_TURN;
        this.buffers.count = 0;
        while budget > 0 && this.buffers.count < BYTES_A_POLL {
            let now = this.boat.now();
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
    /// Returns whether the connection is over.
    fn turn(&mut self, buffers: &mut Buffers, now: Timestamp) -> bool {
        let connection = Arc::clone(self.driver.connection());
        connection.begin_turn();
        let waker = waker_ref(&connection);
        let cx = &mut Context::from_waker(&waker);
        self.driver.lend(&mut buffers.write);
        let mut is_quiet = false;
        // Received bytes are handled before deadlines: after a pause, acknowledgements and pings
        // waiting in the socket count. Once per turn: later arrivals are for the next one.
        let has_heard_all = self.read(cx, buffers, now);
        for _ in 0..ROUNDS_A_TURN {
            self.driver.act(now);
            let has_written = self.write(cx, now);
            let has_rung = self.driver.check_time(has_heard_all, now);
            if self.driver.is_gone()
                && let Some(mut socket) = self.socket.take()
            {
                // For example the answer to a close frame, or an alert: as far as the socket takes
                // it at once.
                self.driver.seal();
                let _ = Pin::new(&mut socket.stream).poll_write(cx, self.driver.unwritten());
                self.driver.clear();
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
        self.driver.is_over()
    }

    /// Reads what has come, within bounds. Returns whether that was all.
    fn read(&mut self, cx: &mut Context<'_>, buffers: &mut Buffers, now: Timestamp) -> bool {
        for _ in 0..READS_A_TURN {
            // Includes frames left over from the turn before.
            match self.driver.handle_frames(now) {
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
            let mut chunk = ReadBuf::uninit(&mut buffers.read);
            match Pin::new(&mut socket.stream).poll_read(cx, &mut chunk) {
                Poll::Ready(Ok(())) if !chunk.filled().is_empty() => {
                    buffers.count += chunk.filled().len();
                    self.driver.receive(chunk.filled_mut(), now);
                }
                Poll::Ready(_) => self.driver.handle_end(now),
                Poll::Pending => return true,
            }
        }
        Connection::wake(self.driver.connection());
        false
    }

    /// Writes ready bytes. Returns whether the session made progress.
    fn write(&mut self, cx: &mut Context<'_>, now: Timestamp) -> bool {
        let mut has_progress = false;
        loop {
            let Some(socket) = &mut self.socket else {
                return has_progress;
            };
            self.driver.fill(now);
            while !self.driver.unwritten().is_empty() {
                match Pin::new(&mut socket.stream).poll_write(cx, self.driver.unwritten()) {
                    Poll::Ready(Ok(count)) if count > 0 => self.driver.wrote(count, now),
                    Poll::Ready(_) => {
                        self.driver.handle_lost(now);
                        return true;
                    }
                    Poll::Pending => return has_progress,
                }
            }
            has_progress |= self.driver.handle_flushed(now);
            if !self.driver.has_more(now) {
                break;
            }
        }
        if let Some(socket) = &mut self.socket
            && self.driver.has_said_all()
        {
            match Pin::new(&mut socket.stream).poll_shutdown(cx) {
                Poll::Ready(Ok(())) => self.driver.handle_shut(),
                Poll::Ready(Err(_)) => self.driver.handle_lost(now),
                Poll::Pending => {}
            }
        }
        has_progress
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
            ("Connection", size_of::<Connection>(), 352),
            ("Session", size_of::<Session>(), 264),
        ];
        for (name, size, max) in sizes {
            assert!(size <= max, "{name}: {size}");
        }
    }
}
