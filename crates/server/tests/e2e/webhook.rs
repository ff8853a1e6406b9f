//! Webhook of the tests, as a provider of notifications.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Behaviour of a webhook.
enum Mood {
    Accepts,
    Refuses,
    /// Refuses notifications for this user.
    RefusesOf(String),
    /// An outage: a later try would succeed.
    Fails,
}

/// A webhook that refuses notifications until set otherwise.
pub struct Webhook {
    pub url: String,
    mood: Arc<Mutex<Mood>>,
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
        let mood = Arc::new(Mutex::new(Mood::Accepts));
        let now = mood.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.expect("a connection"), &now);
            }
        });
        Webhook { url, mood }
    }

    pub fn refuse(&self) {
        self.be(Mood::Refuses);
    }

    pub fn refuse_user(&self, user: &str) {
        self.be(Mood::RefusesOf(user.to_owned()));
    }

    pub fn fail(&self) {
        self.be(Mood::Fails);
    }

    pub fn accept(&self) {
        self.be(Mood::Accepts);
    }

    fn be(&self, mood: Mood) {
        *self.mood.lock().expect("nobody panics with it") = mood;
    }
}

impl Mood {
    fn status(&self, body: &[u8]) -> &'static str {
        const REFUSED: &str = "400 Bad Request";
        match self {
            Mood::Refuses => REFUSED,
            Mood::RefusesOf(user) if is_for(body, user) => REFUSED,
            Mood::Fails => "503 Service Unavailable",
            Mood::Accepts | Mood::RefusesOf(_) => "200 OK",
        }
    }
}

fn is_for(body: &[u8], user: &str) -> bool {
    let body: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    body["user"] == user
}

fn answer(mut stream: TcpStream, mood: &Mutex<Mood>) {
    let mut request = BufReader::new(stream.try_clone().expect("the same socket"));
    let mut length = 0;
    let mut line = String::new();
    while request.read_line(&mut line).expect("a header") > 2 {
        if let Some(text) = line.to_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().expect("a number");
        }
        line.clear();
    }
    let mut body = vec![0; length];
    request.read_exact(&mut body).expect("a body");
    let status = mood.lock().expect("nobody panics with it").status(&body);
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    // The caller may be gone.
    let _ = stream.write_all(head.as_bytes());
}
