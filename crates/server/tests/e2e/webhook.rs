//! A provider of notifications.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A webhook that refuses what it is told, until it does not.
pub struct Webhook {
    pub url: String,
    refuses: Arc<AtomicBool>,
}

impl Webhook {
    pub fn refusing() -> Webhook {
        let webhook = Webhook::accepting();
        webhook.refuse();
        webhook
    }

    pub fn accepting() -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let refuses = Arc::new(AtomicBool::new(false));
        let mood = refuses.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let status = if mood.load(Ordering::SeqCst) {
                    "400 Bad Request"
                } else {
                    "200 OK"
                };
                answer(stream.expect("a connection"), status);
            }
        });
        Webhook { url, refuses }
    }

    pub fn refuse(&self) {
        self.refuses.store(true, Ordering::SeqCst);
    }

    pub fn accept(&self) {
        self.refuses.store(false, Ordering::SeqCst);
    }
}

fn answer(mut stream: TcpStream, status: &str) {
    let mut request = BufReader::new(stream.try_clone().expect("the same socket"));
    let mut length = 0;
    let mut line = String::new();
    while request.read_line(&mut line).expect("a header") > 2 {
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        line.clear();
    }
    request.read_exact(&mut vec![0; length]).expect("a body");
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // Who asked may be gone.
    let _ = stream.write_all(head.as_bytes());
}
