//! Layout of a [`Snapshot`] in the tables.

use bytes::Bytes;
use prost::Message as _;
use protocol::change::ChangeOf;
use protocol::frame::Summary;
use protocol::loaded_ranges::LoadedRanges;
use protocol::message::Content;
use protocol::receipt::ReceiptStatus;
use protocol::{
    Code, ConversationId, GroupId, MessageId, Options, Recipient, Refusal, SendId, Seq, Timestamp,
    UserId,
};
use rusqlite::{Connection, Row, Transaction, params};

use super::StoreError;
use crate::core::{
    Account, Change, ConversationProgress, Cursor, FollowedRow, OutboxRow, Snapshot,
};

pub(super) fn load(connection: &Connection, account: i64) -> Result<Snapshot, StoreError> {
    let mut snapshot = load_account(connection, account)?;
    let mut statement = connection.prepare(
        "SELECT conversation, seq, id, at, known, read_seq, read_id, read_acked, rev, hidden, hidden_known
         FROM conversation WHERE account = ?",
    )?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let (conversation, progress) = conversation_row(row)?;
        snapshot.conversations.insert(conversation, progress);
    }
    let mut statement =
        connection.prepare("SELECT conversation, first, last FROM stretch WHERE account = ?")?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let conversation_id = conversation(&row.get::<_, Vec<u8>>(0)?)?;
        let stretch = seq(row.get(1)?)..=seq(row.get(2)?);
        snapshot
            .loaded_ranges
            .entry(conversation_id)
            .or_default()
            .add(stretch);
    }
    let mut statement =
        connection.prepare("SELECT conversation, seq FROM hidden WHERE account = ?")?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let conversation_id = conversation(&row.get::<_, Vec<u8>>(0)?)?;
        snapshot
            .hidden_seqs
            .entry(conversation_id)
            .or_default()
            .insert(seq(row.get(1)?));
    }
    let mut statement = connection.prepare("SELECT summary FROM listed WHERE account = ?")?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let summary = summary(row.get(0)?)?;
        snapshot.list.insert(summary.conversation, summary);
    }
    let mut statement = connection.prepare(
        "SELECT position, send_id, to_kind, to_id, options, kind, data, priority, reference,
                encryption, sub_kind, key_print, created_at, failed_code, failed_text, change
         FROM outbox WHERE account = ?",
    )?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let row = outbox_row(row)?;
        snapshot.outbox.insert(row.order, row);
    }
    let mut statement = connection.prepare(
        "SELECT position, send_id, conversation, id, seq, status FROM followed WHERE account = ?",
    )?;
    let mut rows = statement.query([account])?;
    while let Some(row) = rows.next()? {
        let row = followed_row(row)?;
        snapshot.followed_rows.insert(row.order, row);
    }
    Ok(snapshot)
}

pub(super) fn write(
    transaction: &Transaction<'_>,
    account: i64,
    change: &Change,
) -> Result<(), StoreError> {
    match change {
        Change::Account(to) => execute(
            transaction,
            "UPDATE account SET cluster = ?, user = ? WHERE account = ?",
            params![to.cluster as i64, to.user.get(), account],
        ),
        Change::Marker(marker) => execute(
            transaction,
            "UPDATE account SET marker = ? WHERE account = ?",
            params![*marker as i64, account],
        ),
        Change::ListVersion(version) => execute(
            transaction,
            "UPDATE account SET list_version = ? WHERE account = ?",
            params![version.millis(), account],
        ),
        Change::Conversation(conversation, progress) => execute(
            transaction,
            "INSERT OR REPLACE INTO conversation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![
                account,
                conversation.to_key(),
                progress.cursor.seq.0 as i64,
                progress.cursor.id.map(MessageId::get),
                progress.cursor.at.millis(),
                progress.known_seq.0 as i64,
                progress.read.map(|(seq, _)| seq.0 as i64),
                progress.read.map(|(_, id)| id.get()),
                progress.read_acked.0 as i64,
                progress.rev as i64,
                progress.hide_number as i64,
                progress.hidden_known as i64,
            ],
        ),
        Change::Hidden(conversation, seqs) => {
            write_hidden(transaction, account, *conversation, seqs)
        }
        Change::HiddenUpTo(conversation, end) => execute(
            transaction,
            "DELETE FROM hidden WHERE account = ? AND conversation = ? AND seq > ?",
            params![account, conversation.to_key(), end.0 as i64],
        ),
        Change::Loaded(conversation, loaded_ranges) => {
            write_loaded(transaction, account, *conversation, loaded_ranges)
        }
        Change::Listed(summary) => execute(
            transaction,
            "INSERT OR REPLACE INTO listed VALUES (?, ?, ?)",
            params![
                account,
                summary.conversation.to_key(),
                api::v1::Summary::from(&**summary).encode_to_vec(),
            ],
        ),
        Change::Outbox(row) => write_outbox(transaction, account, row),
        Change::Followed(row) => {
            forget(transaction, account, row.order, "outbox")?;
            execute(
                transaction,
                "INSERT OR REPLACE INTO followed VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![
                    account,
                    row.order as i64,
                    row.send_id.as_bytes(),
                    row.conversation.to_key(),
                    row.id.get(),
                    row.seq.map(|seq| seq.0 as i64),
                    row.status as i64,
                ],
            )
        }
        Change::Forget { order } => {
            forget(transaction, account, *order, "outbox")?;
            forget(transaction, account, *order, "followed")
        }
    }
}

fn write_hidden(
    transaction: &Transaction<'_>,
    account: i64,
    conversation: ConversationId,
    seqs: &[Seq],
) -> Result<(), StoreError> {
    for seq in seqs {
        execute(
            transaction,
            "INSERT OR IGNORE INTO hidden VALUES (?, ?, ?)",
            params![account, conversation.to_key(), seq.0 as i64],
        )?;
    }
    Ok(())
}

fn write_loaded(
    transaction: &Transaction<'_>,
    account: i64,
    conversation: ConversationId,
    loaded_ranges: &LoadedRanges,
) -> Result<(), StoreError> {
    execute(
        transaction,
        "DELETE FROM stretch WHERE account = ? AND conversation = ?",
        params![account, conversation.to_key()],
    )?;
    for stretch in loaded_ranges.stretches() {
        execute(
            transaction,
            "INSERT INTO stretch VALUES (?, ?, ?, ?)",
            params![
                account,
                conversation.to_key(),
                stretch.start().0 as i64,
                stretch.end().0 as i64,
            ],
        )?;
    }
    Ok(())
}

fn write_outbox(
    transaction: &Transaction<'_>,
    account: i64,
    row: &OutboxRow,
) -> Result<(), StoreError> {
    let (to_kind, to_id) = match row.to {
        Recipient::User(user) => (0, user.get()),
        Recipient::Group(group) => (1, group.get()),
    };
    execute(
        transaction,
        "INSERT OR REPLACE INTO outbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            account,
            row.order as i64,
            row.send_id.as_bytes(),
            to_kind,
            to_id,
            row.options.bits(),
            row.content.kind,
            row.content.data.as_ref(),
            row.content.priority,
            row.content.reference.map(MessageId::get),
            row.content.encryption,
            row.content.sub_kind,
            row.content.key_print,
            row.created_at.millis(),
            row.refusal.as_ref().map(|refusal| refusal.code.number()),
            row.refusal.as_ref().map(|refusal| refusal.text.as_str()),
            (row.content.change.as_deref())
                .map(|change| api::v1::ChangeOf::from(change).encode_to_vec()),
        ],
    )
}

fn forget(
    transaction: &Transaction<'_>,
    account: i64,
    order: u64,
    table: &str,
) -> Result<(), StoreError> {
    let sql = format!("DELETE FROM {table} WHERE account = ? AND position = ?");
    execute(transaction, &sql, params![account, order as i64])
}

fn execute(
    transaction: &Transaction<'_>,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<(), StoreError> {
    transaction.prepare_cached(sql)?.execute(params)?;
    Ok(())
}

/// Moves waiting sends to another account of the same user.
pub(super) fn move_outbox(
    transaction: &Transaction<'_>,
    from: i64,
    to: i64,
    user: UserId,
) -> Result<(), StoreError> {
    let end = "SELECT COALESCE(MAX(position) + 1, 0) FROM \
        (SELECT position FROM outbox WHERE account = ?1 UNION ALL \
         SELECT position FROM followed WHERE account = ?1)";
    let end: i64 = transaction.query_row(end, [to], |row| row.get(0))?;
    let sql = "UPDATE outbox SET account = ?1, position = position + ?2 WHERE account = ?3 AND EXISTS \
        (SELECT 1 FROM account WHERE account = ?3 AND user = ?4)";
    execute(transaction, sql, params![to, end, from, user.get()])
}

fn load_account(connection: &Connection, account: i64) -> Result<Snapshot, StoreError> {
    let (cluster, user, marker, version): (Option<i64>, Option<i64>, Option<i64>, i64) = connection
        .query_row(
            "SELECT cluster, user, marker, list_version FROM account WHERE account = ?",
            [account],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )?;
    let account = match (cluster, user) {
        (Some(cluster), Some(user)) => Some(Account {
            cluster: cluster as u64,
            user: user_id(user)?,
        }),
        _ => None,
    };
    Ok(Snapshot {
        account,
        marker: marker.map(|marker| marker as u64),
        list_version: Timestamp::from_millis(version),
        ..Snapshot::default()
    })
}

fn conversation_row(row: &Row<'_>) -> Result<(ConversationId, ConversationProgress), StoreError> {
    let read = match (row.get::<_, Option<i64>>(5)?, row.get(6)?) {
        (Some(seq), Some(id)) => Some((Seq(seq as u64), message_id(id)?)),
        _ => None,
    };
    let progress = ConversationProgress {
        cursor: Cursor {
            seq: seq(row.get(1)?),
            id: row.get::<_, Option<i64>>(2)?.map(message_id).transpose()?,
            at: Timestamp::from_millis(row.get(3)?),
        },
        known_seq: seq(row.get(4)?),
        read,
        read_acked: seq(row.get(7)?),
        rev: row.get::<_, i64>(8)? as u64,
        hide_number: row.get::<_, i64>(9)? as u64,
        hidden_known: row.get::<_, i64>(10)? as u64,
    };
    Ok((conversation(&row.get::<_, Vec<u8>>(0)?)?, progress))
}

fn outbox_row(row: &Row<'_>) -> Result<OutboxRow, StoreError> {
    let to_id: i64 = row.get(3)?;
    let to = match row.get::<_, i64>(2)? {
        0 => Recipient::User(user_id(to_id)?),
        1 => Recipient::Group(GroupId::new(to_id).map_err(|_| StoreError::Corrupt("a group"))?),
        _ => return Err(StoreError::Corrupt("a kind of receiver")),
    };
    let refusal = match row.get::<_, Option<u16>>(13)? {
        Some(number) => {
            let code = Code::from_number(number).ok_or(StoreError::Corrupt("a code"))?;
            Some(Refusal::new(code, row.get::<_, String>(14)?))
        }
        None => None,
    };
    Ok(OutboxRow {
        order: row.get::<_, i64>(0)? as u64,
        send_id: SendId::from_bytes(row.get(1)?),
        to,
        options: Options::from_bits(row.get(4)?).ok_or(StoreError::Corrupt("options"))?,
        content: Content {
            kind: row.get(5)?,
            data: Bytes::from(row.get::<_, Vec<u8>>(6)?),
            priority: row.get(7)?,
            reference: row.get::<_, Option<i64>>(8)?.map(message_id).transpose()?,
            encryption: row.get(9)?,
            sub_kind: row.get(10)?,
            key_print: row.get(11)?,
            change: row.get::<_, Option<Vec<u8>>>(15)?.map(change).transpose()?,
        },
        created_at: Timestamp::from_millis(row.get(12)?),
        refusal,
    })
}

fn summary(bytes: Vec<u8>) -> Result<Summary, StoreError> {
    let torn = || StoreError::Corrupt("a conversation of the list");
    let wire = api::v1::Summary::decode(&bytes[..]).map_err(|_| torn())?;
    wire.try_into().map_err(|_| torn())
}

fn change(bytes: Vec<u8>) -> Result<Box<ChangeOf>, StoreError> {
    let torn = || StoreError::Corrupt("a change");
    let wire = api::v1::ChangeOf::decode(&bytes[..]).map_err(|_| torn())?;
    wire.try_into().map(Box::new).map_err(|_| torn())
}

fn followed_row(row: &Row<'_>) -> Result<FollowedRow, StoreError> {
    let status = match row.get::<_, i64>(5)? {
        0 => ReceiptStatus::Sent,
        1 => ReceiptStatus::Delivered,
        2 => ReceiptStatus::Read,
        _ => return Err(StoreError::Corrupt("a status")),
    };
    Ok(FollowedRow {
        order: row.get::<_, i64>(0)? as u64,
        send_id: SendId::from_bytes(row.get(1)?),
        conversation: conversation(&row.get::<_, Vec<u8>>(2)?)?,
        id: message_id(row.get(3)?)?,
        seq: row.get::<_, Option<i64>>(4)?.map(seq),
        status,
    })
}

fn seq(number: i64) -> Seq {
    Seq(number as u64)
}

fn user_id(number: i64) -> Result<UserId, StoreError> {
    UserId::new(number).map_err(|_| StoreError::Corrupt("a user"))
}

fn message_id(number: i64) -> Result<MessageId, StoreError> {
    MessageId::new(number).map_err(|_| StoreError::Corrupt("a message id"))
}

fn conversation(key: &[u8]) -> Result<ConversationId, StoreError> {
    ConversationId::from_key(key).ok_or(StoreError::Corrupt("a conversation"))
}
