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

            /// Read by whole keys, and often in vain; other tables are read by ranges, where
            /// filters are no help.
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

            /// Name on disk.
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
    /// First retained offset of each partition, and committed offsets of groups.
    Offsets => "offsets",
    /// Incarnations, node numbers, the cluster number.
    Registry => "registry",
    /// Number of the installation, and reservations of node numbers, beside the registry.
    Installation => "installation",
    /// Sessions of users, and small rows of the mailbox beside the waiting messages.
    Session => "session",
    /// Waiting messages: references.
    Mail => "mail",
    /// Bodies of waiting messages, with their counts.
    MailBody => "mail-body",
    /// Dedupe keys of senders.
    Dedupe => "dedupe",
    /// History rows of private chats.
    Private => "private",
    /// Ids of private messages by position.
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
    /// Messages hidden by their owner, in the order of hiding.
    Hidden => "hidden",
    /// Changes of messages, in their order.
    Change => "change",
    /// Effects of changes on their messages.
    Altered => "altered",
    /// Devices and their push tokens.
    Device => "device",
    /// Ledger entries of each message.
    Ledger => "ledger",
    /// The head of the chain over closed minutes, and the minutes.
    Audit => "audit",
    /// History rows of groups.
    Group => "group",
    /// Ids of group messages by position.
    GroupIndex => "group-index",
    /// Positions of each member's own messages.
    GroupOwn => "group-own",
    /// Messages to groups by send_id.
    GroupSend => "group-send",
    /// Deleted messages of groups.
    GroupStatus => "group-status",
    /// Settings of groups.
    GroupInfo => "group-info",
    /// Members of groups, past and present.
    GroupMember => "group-member",
    /// Groups of users, past and present.
    UserGroup => "user-group",
    /// Departures from groups, by the time of their write.
    GroupLeft => "group-left",
    /// Revocations of tokens, by their time.
    Revocation => "revocation",
}
