//! Repeated sends, and the marker.

use super::*;

/// A repeated send finds the first id, even within one call.
pub(crate) async fn a_repeated_send_finds_the_first(scene: &Scene) {
    let key = |user, send| scene.send_key(user, send);
    let (one, two) = (scene.first_send(1, 9, 1), scene.first_send(1, 9, 2));
    let other = scene.first_send(2, 9, 3);
    assert_eq!(
        scene
            .begin(vec![(key(1, 1), one), (key(1, 1), two), (key(2, 1), other)])
            .await,
        [
            DedupeAnswer::Fresh,
            DedupeAnswer::Pending(one),
            DedupeAnswer::Fresh
        ],
        "a send_id belongs to its sender"
    );
    let sends = vec![(key(1, 1), one)];
    scene.store.dedupe_done(sends).await.expect("done");
    assert_eq!(
        scene.begin(vec![(key(1, 1), two), (key(2, 1), one)]).await,
        [DedupeAnswer::Done(one), DedupeAnswer::Pending(other)]
    );
}

/// A send_id repeated in another conversation finds the one of its first use, and changes nothing.
pub(crate) async fn a_send_id_returns_its_first_conversation(scene: &Scene) {
    let key = scene.send_key(1, 2);
    let (first, second) = (scene.first_send(1, 8, 1), scene.first_send(1, 9, 2));
    assert_eq!(
        scene.begin(vec![(key, first), (key, second)]).await,
        [DedupeAnswer::Fresh, DedupeAnswer::Pending(first)]
    );
    for (send, expected) in [
        (second, DedupeAnswer::Pending(first)),
        (first, DedupeAnswer::Done(first)),
        (second, DedupeAnswer::Done(first)),
    ] {
        scene
            .store
            .dedupe_done(vec![(key, send)])
            .await
            .expect("done");
        assert_eq!(scene.begin(vec![(key, second)]).await, [expected]);
    }
}

/// The marker reported to a user's logins stays the same while nothing is lost.
pub(crate) async fn the_marker_stays(scene: &Scene) {
    let (phone, desk) = (scene.ios(1), scene.on(1, Platform::Desktop));
    let marker = scene.connect(&scene.session(1, phone)).await.marker;
    assert_ne!(marker, 0, "zero is what a client says that has none");
    scene.put(phone, 1, seconds(1)).await;
    for (n, target) in [(2, phone), (3, desk), (2, phone)] {
        let answer = scene.connect(&scene.session(n, target)).await;
        assert_eq!(answer.marker, marker);
    }
}
