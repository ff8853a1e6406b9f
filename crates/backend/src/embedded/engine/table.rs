/// One keyspace of the store. A seam adds its own here; names on disk never change.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident => $name:literal,)*) => {
        /// A keyspace of the store: keys in byte order, independent of the others' keys.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Table {
            $($(#[$doc])* $table,)*
        }

        impl Table {
            pub const ALL: &'static [Table] = &[$(Table::$table,)*];

            /// Read by whole keys, and often in vain; the others are read by ranges, where filters are no help.
            pub(super) const fn is_read_by_key(self) -> bool {
                !matches!(
                    self,
                    Table::Log
                        | Table::PrivateIndex
                        | Table::Hidden
                        | Table::Change
                        | Table::Ledger
                        | Table::Mail
                        | Table::Audit
                        | Table::GroupOwn
                        | Table::GroupSend
                        | Table::UserGroup
                        | Table::GroupLeft
                        | Table::Revocation
                )
            }

            /// Its name on disk.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Table::$table => $name,)*
                }
            }
        }
    };
}

tables! {
    /// The store's own: format, log settings.
    Meta => "meta",
    /// Records of the log.
    Log => "log",
    /// First offset kept of each partition, and committed offsets of groups.
    Offsets => "offsets",
    /// Incarnations, node numbers, the cluster number.
    Registry => "registry",
    /// The number of the installation, and what was reserved of node numbers, beside the registry.
    Installation => "installation",
    /// Sessions of users, and small things of the mailbox beside the waiting messages.
    Session => "session",
    /// Waiting messages: references.
    Mail => "mail",
    /// Bodies of waiting messages, with their counts.
    MailBody => "mail-body",
    /// Dedupe keys of senders.
    Dedupe => "dedupe",
    /// History rows of private chats.
    Private => "private",
    /// Where a private message lies by another order than its key.
    PrivateIndex => "private-index",
    /// Private messages by send_id.
    PrivateSend => "private-send",
    /// Status columns of private messages.
    PrivateStatus => "private-status",
    /// The single writer's state of each conversation.
    Head => "head",
    /// Conversation lists.
    Conversation => "conversation",
    /// Registers of conversations that only grow: read, delivered, cleared.
    ConversationRegister => "conversation-register",
    /// Messages that an owner hid, in the order in which they were.
    Hidden => "hidden",
    /// Changes of messages, in their order.
    Change => "change",
    /// What they leave on their messages.
    Altered => "altered",
    /// Devices and their push tokens.
    Device => "device",
    /// What became of each message.
    Ledger => "ledger",
    /// The head of the chain over closed minutes, and the minutes.
    Audit => "audit",
    /// History rows of groups.
    Group => "group",
    /// Which message stands where in a group.
    GroupIndex => "group-index",
    /// Where each member's own messages stand.
    GroupOwn => "group-own",
    /// Messages to groups by send_id.
    GroupSend => "group-send",
    /// Deleted messages of groups.
    GroupStatus => "group-status",
    /// Settings of groups.
    GroupInfo => "group-info",
    /// Who is or was in a group.
    GroupMember => "group-member",
    /// In which groups a user is or was.
    UserGroup => "user-group",
    /// Who left a group, by the time at which that was written.
    GroupLeft => "group-left",
    /// Revocations of tokens, by their time.
    Revocation => "revocation",
}
