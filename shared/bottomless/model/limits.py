"""Bounds, each with its reason. Sizes in bytes, times in milliseconds unless the name says otherwise."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

OFFSET_MAX: Final = 2**53 - 1
"""The largest offset: common parsers round JSON numbers beyond it."""

TIMESTAMP_MIN: Final = -62_135_596_800_000
TIMESTAMP_MAX: Final = 253_402_300_799_999
"""First and last millisecond of the years 1 to 9999, which RFC 3339 can write."""

NAME_SIZE_MAX: Final = 128
NAMES_TOGETHER_COUNT_MAX: Final = 1_000
"""Names in one question of ingest to manifest."""
RECORD_VALUE_SIZE_MAX: Final = MIB
RECORD_KEY_SIZE_MAX: Final = KIB
FILTER_VALUE_SIZE_MAX: Final = 255
HEADER_COUNT_MAX: Final = 32
HEADER_SIZE_MAX: Final = 4 * KIB
"""Bytes of one header, name and value together."""

JSON_RECORD_COUNT_MAX: Final = 10_000
ARROW_RECORD_COUNT_MAX: Final = 1_000_000
JSON_BODY_SIZE_MAX: Final = 8 * MIB
BINARY_BODY_SIZE_MAX: Final = 16 * MIB
DECOMPRESSED_SIZE_MAX: Final = 64 * MIB
URL_SIZE_MAX: Final = 8 * KIB
STAGED_PLAN_KEEP_MS: Final = 604_800_000
"""How long the rest of a commit that was cut off between its parts waits in a bucket: 7 days."""

PAGE_RECORD_COUNT_DEFAULT: Final = 1_000
PAGE_RECORD_COUNT_MAX: Final = 10_000
PAGE_RECORD_COUNT_ARROW_MAX: Final = 1_000_000
"""Arrow pages are bounded by bytes; the count only keeps arithmetic small."""
PAGE_SIZE_DEFAULT: Final = MIB
PAGE_SIZE_MAX: Final = 16 * MIB
LONG_POLL_MS_MAX: Final = 30_000

CHUNK_SIZE_MAX: Final = 128 * MIB
"""Nothing larger is sealed, and a decoder refuses a header that claims more before it allocates."""
CHUNK_RECORD_COUNT_MAX: Final = 4_000_000
CHUNK_BATCH_COUNT_MAX: Final = 65_535
FRAME_SIZE_MAX: Final = 96 * MIB
"""Larger than DECOMPRESSED_SIZE_MAX by the room that Arrow's own buffers need."""

FRAGMENT_TARGET_SIZE_MIN: Final = 64 * KIB
FRAGMENT_TARGET_SIZE_MAX: Final = GIB
FRAGMENT_TARGET_SIZE_DEFAULT: Final = 64 * MIB
FRAGMENT_AGE_MS_MIN: Final = 100
FRAGMENT_AGE_MS_MAX: Final = 86_400_000
FRAGMENT_AGE_MS_DEFAULT: Final = 60_000
LEADERLESS_AGE_MS_MIN: Final = 10_000
LEADERLESS_AGE_MS_MAX: Final = 1_800_000
LEADERLESS_AGE_MS_DEFAULT: Final = 600_000
"""How long records of a leaderless stream may wait in WAL objects, which many streams share."""
FRAGMENT_CHUNK_COUNT_MAX: Final = 4_000_000
"""Bounds the index: 48 bytes each, so that index and footer stay below 2^32 bytes."""
FILTER_SIZE_MIN: Final = 32
FILTER_SIZE_MAX: Final = 1_024
FILTER_SIZE_DEFAULT: Final = 256
"""Bytes of the filter of a chunk: 256 are good for some 200 different values."""
FILTER_BLOCK_COUNT_MAX: Final = 32
"""Blocks, of 32 bytes, of the filter of a chunk and of that of a manifest entry: a root of 2,048
entries has at most 2 MiB of them."""

WAL_SIZE_MAX: Final = 512 * MIB
"""A position in a WAL object is 32 bits wide, and who reads one whole holds it in memory."""
WAL_PIECE_COUNT_MAX: Final = 65_535
WAL_NOTE_COUNT_MAX: Final = 65_535
"""Pieces and notes of one WAL object: a directory of at most 8 MiB."""
WAL_SEQUENCE_MAX: Final = 2**32 - 1
"""A tail entry has 32 bits for it; at ten objects a second it lasts for thirteen years."""

FANOUT_DEFAULT: Final = 1024
FANOUT_MIN: Final = 2
NODE_ENTRY_COUNT_MAX: Final = 1_000_000
"""A decoder refuses a node that claims more before it allocates."""

PARTITION_COUNT_MAX: Final = 1_000
"""Partitions of one super stream: all of them stand in its record, which one EXEC writes."""
REPLICA_COUNT_MAX: Final = 9
"""Nodes that hold the tail of one stream; each of them is in its record."""
TIER_COUNT_MAX: Final = 8
"""Tiers of one stream."""
MOVE_COUNT_MAX: Final = 4
"""Moves of one stream that are under way; each of them is in its record."""
MOVED_COUNT_MAX: Final = 64
"""Fragments that one move takes along."""
PROMOTION_COUNT_MAX: Final = 16
"""Ranges of one stream that its policy leaves where they are; each of them is in its record."""
SUPER_NAME_SIZE_MAX: Final = 120
"""Characters of the name of a super stream, so that its partitions' numbers fit after it."""
BINDING_KEY_SIZE_MAX: Final = 255
"""Bytes, in UTF-8, of the key of a partition: a thousand of them stand in one record."""
LABEL_COUNT_MAX: Final = 64
LABEL_SIZE_MAX: Final = 256

PRIORITY_MAX: Final = 9
FAN_OUT_MAX: Final = 64
"""Queues that one publish names at most."""
PUBLISH_COUNT_MAX: Final = 1_000
"""Messages of one publish at most."""
ADDED_HEADER_COUNT: Final = 4
"""Headers that a message gets where it leaves its queue for another one or for a stream."""
MESSAGE_HEADER_COUNT_MAX: Final = HEADER_COUNT_MAX - ADDED_HEADER_COUNT
"""Headers of a message at most, so that with those its record has no more than a stream takes."""
RECEIVE_COUNT_MAX: Final = 100
RECEIVE_SIZE_MAX: Final = 16 * MIB
"""Bytes of what one receive answers; one message is given always."""
RECEIPT_COUNT_MAX: Final = 1_000
REDRIVE_COUNT_MAX: Final = 1_000
QUEUE_COUNT_MAX: Final = 10_000
"""Queues of one tenant at most."""
QUEUE_SEQUENCE_MAX: Final = 2**63 - 1
"""The largest number of a message in a queue: the ledger keeps signed numbers of 64 bits."""
VISIBILITY_MS_DEFAULT: Final = 30_000
VISIBILITY_MS_MAX: Final = 12 * 3_600_000
DELAY_MS_MAX: Final = 14 * 86_400_000
MESSAGE_TTL_MS_MAX: Final = 3_660 * 86_400_000
"""Ten years: the end of a message stays a time that can be written."""
DEDUP_MS_DEFAULT: Final = 300_000
DEDUP_MS_MAX: Final = 86_400_000
DELIVERY_COUNT_MAX: Final = 1_000
"""The most that a queue can allow: a message that failed so often has failed for good."""
