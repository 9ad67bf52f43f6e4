//! Every limit in one place, with its unit in its name and the reason for its number.
//!
//! A limit is refused loudly at the door; zero never means "unlimited".

use std::time::Duration;

/// One event as sent, sub-events included. Larger payloads belong in object storage with a link in the event.
pub const EVENT_BYTES_MAX: usize = 1024 * 1024;
/// One request. Sixteen full events, or ten thousand ordinary ones.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long a body may take to arrive, in all.
pub const BODY_TIMEOUT_MS: u64 = 30_000;
/// How long a body may take at any pace; a poor line stalls for some seconds now and then.
pub const BODY_GRACE_MS: u64 = 10_000;
/// The average at which a body must have arrived after that: slower than any line that events are sent over.
pub const BODY_BYTES_PER_SECOND_MIN: u64 = 1_024;
/// How far back a zstd body may refer, as a power of two: 8 MiB, which every decoder supports (RFC 8878).
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Events in one request, sub-events counted. Keeps one group commit short.
pub const REQUEST_EVENTS_MAX: usize = 10_000;
/// Nesting of JSON, counted from the event's own braces. Deeper input is an attack or a bug.
pub const JSON_DEPTH_MAX: usize = 64;

/// Characters are counted in bytes of UTF-8 for every text below.
pub const EVENT_ID_BYTES_MAX: usize = 256;
/// An `idempotency-key` header, which becomes an event's id.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// `source` names a service; a URI fits.
pub const SOURCE_BYTES_MAX: usize = 256;
/// Event types, for example `order.paid`.
pub const TYPE_BYTES_MAX: usize = 256;
/// What the event is about.
pub const SUBJECT_BYTES_MAX: usize = 1024;
/// Parents of an event, that is, the events it follows from.
pub const PARENTS_MAX: usize = 64;
/// Extension attributes of one event.
pub const EXTENSIONS_MAX: usize = 64;
/// Name of an extension attribute (CloudEvents recommends 20 characters).
pub const EXTENSION_NAME_BYTES_MAX: usize = 64;

/// A subscriber's label.
pub const SUBSCRIBER_NAME_BYTES_MAX: usize = 256;
/// A subscriber's id that its owner chose; it stands in paths and logs.
pub const SUBSCRIBER_ID_BYTES_MAX: usize = 64;
/// Subscribers of one project: each costs memory in every routing table.
pub const SUBSCRIBERS_PER_PROJECT_MAX: usize = 10_000;
/// CEL conditions of one project's subscribers: each is evaluated for every event that passes the rest of its match, up to
/// [`WHERE_STEPS_MAX`] steps, before the event is answered.
pub const CONDITIONS_PER_PROJECT_MAX: usize = 1_000;
/// Patterns in `match.types` or `match.sources`.
pub const MATCH_PATTERNS_MAX: usize = 100;
/// A CEL condition. The parser's cost grows with its source.
pub const WHERE_BYTES_MAX: usize = 1024;
/// Nested brackets in a CEL condition, counted before the parser (whose stack grows with them) sees it.
pub const WHERE_DEPTH_MAX: usize = 32;
/// Levels of a CEL condition's tree: evaluation takes stack for each (40 KiB in an unoptimised build) on threads with
/// the usual 2 MiB.
pub const WHERE_TREE_DEPTH_MAX: usize = 24;
/// Macros (`all`, `exists`, `map`, `filter`) inside each other in a CEL condition.
pub const WHERE_MACRO_DEPTH_MAX: usize = 2;
/// Regular expressions in a CEL condition.
pub const WHERE_REGEXES_MAX: usize = 4;
/// Bytes of one compiled regular expression: bounds memory, and time per byte of text.
pub const WHERE_REGEX_BYTES_MAX: usize = 256 * 1024;
/// Steps one evaluation of a CEL condition may take, half a microsecond each: elements visited, and text by the
/// kilobyte.
pub const WHERE_STEPS_MAX: u32 = 20_000;
/// An attribute path such as `data.order.id`.
pub const PATH_BYTES_MAX: usize = 256;

/// An endpoint URL.
pub const URL_BYTES_MAX: usize = 2048;
/// Custom headers of one subscriber.
pub const HEADERS_MAX: usize = 32;
/// Names and values of all custom headers together.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// Attempts under way to one subscriber unless it says otherwise.
pub const CONCURRENCY_DEFAULT: u32 = 16;
/// Attempts under way to one subscriber at most.
pub const CONCURRENCY_MAX: u32 = 256;
/// Deliveries per second a rate may name; more than this machine can send.
pub const RATE_PER_SECOND_MAX: u32 = 100_000;
/// The name of a gate; it stands in paths, files and logs.
pub const GATE_NAME_BYTES_MAX: usize = 64;
/// Gates of one project: each stands for an API that somebody else runs, and nobody uses hundreds of those.
pub const GATES_PER_PROJECT_MAX: usize = 1_000;
/// How many a gate may let through at once: a second's worth of the highest rate.
pub const GATE_BURST_MAX: u32 = RATE_PER_SECOND_MAX;
/// After a penalty a gate lets through an eighth of its rate for this long, then a quarter, then a half: whoever said
/// "too many" is not met with all of it at once, and half a minute later it is as before.
pub const GATE_RECOVERY_STEP_MS: u64 = 10_000;
/// How long a gate pauses when a receiver says "too many" and not for how long: the usual limits are per second.
pub const GATE_PENALTY_DEFAULT_MS: u64 = 1_000;
/// How long a gate may be told to pause: as long as a receiver may ask one delivery to wait.
pub const GATE_PENALTY_MAX_MS: u64 = RETRY_AFTER_MAX_MS;
/// How long a client may wait for a token in one request: proxies in between end those that take longer.
pub const GATE_WAIT_MAX_MS: u64 = 60_000;
/// Clients that wait at one gate of one process: each keeps a connection open.
pub const GATE_CLIENTS_MAX: usize = 1_000;
/// How long a token of a shared gate is kept for the process whose first in line has waited longest: more than a busy process
/// comes too late, and no more than one that died may cost the others.
pub const GATE_PATIENCE_MS: u64 = 100;
/// What a process has heard of a gate that others pass too holds for this long; then it is worth another look before windows are
/// stretched by it.
pub const GATE_HEARD_MS: u64 = 1_000;
/// Waiting times that are remembered for each gate, to show how long it takes at present.
pub const GATE_WAITS_KEPT: usize = 128;
/// Total deadline of one attempt unless the subscriber says otherwise.
pub const TIMEOUT_DEFAULT_MS: u64 = 30_000;
/// Total deadline of one attempt at least: below this every TLS handshake fails.
pub const TIMEOUT_MIN_MS: u64 = 100;
/// Total deadline of one attempt at most: a graceful stop waits this long.
pub const TIMEOUT_MAX_MS: u64 = 120_000;
/// Delays in a retry schedule.
pub const RETRIES_MAX: usize = 50;
/// One delay of a retry schedule: a week.
pub const RETRY_DELAY_MAX_MS: u64 = 7 * 24 * 3_600_000;
/// A delivery that was answered 410 is due again after this, if its subscriber is active by then.
pub const GONE_AGAIN_AFTER_MS: u64 = 1_000;
/// Failures in a row that open a subscriber's breaker unless it says otherwise.
pub const BREAKER_FAILURES_DEFAULT: u32 = 10;
/// Failures in a row that open a breaker at most; a receiver that failed so often is not merely unlucky.
pub const BREAKER_FAILURES_MAX: u32 = 10_000;
/// The longest time between two probes of an open breaker unless the subscriber says otherwise.
pub const PROBE_DEFAULT_MS: u64 = 60_000;
/// The longest time between two probes at least: more often is no relief for the receiver.
pub const PROBE_MIN_MS: u64 = 1_000;
/// The longest time between two probes at most: a receiver that is back should not wait longer for its events.
pub const PROBE_MAX_MS: u64 = 3_600_000;
/// The first probe of an open breaker comes half to all of this later; the next ones after twice as long each time.
pub const PROBE_FIRST_MS: u64 = 10_000;
/// Nothing but failures for this long make a subscriber inactive unless it says otherwise: five days, a long weekend
/// with a day to notice.
pub const DISABLE_AFTER_DEFAULT_MS: u64 = 5 * 24 * 3_600_000;
/// The same at least: a receiver's restart takes longer.
pub const DISABLE_AFTER_MIN_MS: u64 = 1_000;
/// The same at most; `never` is said in words.
pub const DISABLE_AFTER_MAX_MS: u64 = 90 * 24 * 3_600_000;
/// How often a subscriber's exhausted deliveries are told to operators; the list has all of them.
pub const EXHAUSTED_TOLD_EVERY_MS: u64 = 60_000;
/// A receiver's `Retry-After` is honoured up to one hour.
pub const RETRY_AFTER_MAX_MS: u64 = 3_600_000;
/// Claims of one delivery that ended without a result (the process died) before it is a suspect: from then on it is begun by a
/// commit of its own before it is sent, and set aside as exhausted if the process ends in between. Sixteen, so that a crash
/// loop of other causes rarely makes suspects, and one delivery that ends its process stops doing so soon.
pub const CLAIMS_LOST_MAX: u32 = 16;
/// Subscribers that a beat names because more of theirs is under way than the process may have: 8 KiB, once a second. While
/// there are more of them, nobody's places move.
pub const BUSY_SUBSCRIBERS_MAX: usize = 1_024;

/// Paths that make up a fold's key.
pub const FOLD_PATHS_MAX: usize = 8;
/// A value in a fold's key as JSON, quotes and escapes included; longer ones stand there by their hash.
pub const FOLD_KEY_VALUE_BYTES_MAX: usize = 256;
/// The shortest time a fold may name: below this nothing is folded that a group commit would not bring together anyway.
pub const FOLD_SPAN_MIN_MS: u64 = 10;
/// The longest: a day, so that what is folded arrives long before retention could ask for it.
pub const FOLD_SPAN_MAX_MS: u64 = 24 * 3_600_000;
/// How long a window gathers unless its subscriber says otherwise.
pub const WINDOW_DEFAULT_MS: u64 = 60_000;
/// How long nothing must come unless the subscriber says otherwise.
pub const QUIET_DEFAULT_MS: u64 = 10_000;
/// A quiet window waits so many quiet periods at most unless its subscriber says otherwise: two minutes by default.
pub const MAX_WAIT_FACTOR: u32 = 12;
/// By how many percent congestion lengthens a quiet period at most: six times as long, which `max_wait` bounds as well.
pub const FOLD_STRETCH_MAX_PERCENT: u32 = 500;
/// How far batches are apart unless the subscriber says otherwise.
pub const BATCH_EVERY_DEFAULT_MS: u64 = 30_000;
/// Events of a batch unless the subscriber says otherwise.
pub const BATCH_EVENTS_DEFAULT: u32 = 1_000;
/// Events of one window at most.
pub const FOLD_EVENTS_MAX: u32 = 10_000;
/// Events after which the embedded store has written down anew what all open windows hold. A start reads twice as many at
/// most: a second or two.
pub const TELLING_EVENTS_MIN: usize = 200_000;
/// The same for each open window: with very many, writing them down is not to cost more than a tenth of a row per event.
pub const TELLING_EVENTS_PER_WINDOW: usize = 10;
/// Bytes of a window's events unless its subscriber says otherwise: what receivers commonly take in one request.
pub const FOLD_BYTES_DEFAULT: u32 = 1024 * 1024;
/// Bytes of a window's events at least; one event may have more.
pub const FOLD_BYTES_MIN: u32 = 1024;
/// Bytes of a window's events at most: a worker holds them all while it sends.
pub const FOLD_BYTES_MAX: u32 = 8 * 1024 * 1024;
/// Windows of one project that can be joined: some three hundred bytes of memory each.
pub const WINDOWS_PER_PROJECT_MAX: usize = 250_000;
/// Windows that somebody asks to end, ended by one transaction: bounds the wait of those who send meanwhile.
pub const END_WINDOWS_MAX: usize = 1_000;
/// Such transactions of one request; it answers whether more is left.
pub const END_WINDOWS_ROUNDS_MAX: usize = 10;
/// Ids of events shown with each delivery of a list: enough for nearly all, and a page of the largest folds stays small.
pub const DELIVERY_EVENTS_LISTED_MAX: usize = 100;
/// Lanes of which is remembered when they last worked, for a metric: some hundred bytes each.
pub const LANES_REMEMBERED_MAX: usize = 10_000;
/// Windows that one group commit closes: bounds the wait of those who send meanwhile.
pub const CLOSE_WINDOWS_MAX: usize = 1_000;

/// Folded deliveries under way, of all subscribers together: each counts as its events and once more as its body. Enough
/// for four of the largest.
pub const FOLDS_IN_FLIGHT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A fold that is read without asking how large it is.
pub const FOLD_BYTES_SMALL: usize = 64 * 1024;

/// How much of a receiver's answer is kept with the attempt.
pub const RESPONSE_KEPT_BYTES_MAX: usize = 1024;
/// How much of a receiver's answer is read before the connection is given up.
pub const RESPONSE_READ_BYTES_MAX: usize = 64 * 1024;
/// Attempts under way over all subscribers: one file descriptor each.
pub const ATTEMPTS_IN_FLIGHT_MAX: usize = 4096;

/// Deliveries of one subscriber that wait in memory; the rest wait in the store.
pub const QUEUE_JOBS_MAX: usize = 8192;
/// A queue is refilled from the store when it falls below this.
pub const QUEUE_REFILL_BELOW: usize = QUEUE_JOBS_MAX / 4;
/// Deliveries taken from the store at once.
pub const QUEUE_REFILL_JOBS: usize = 4096;
/// Deliveries that wait in memory for each place of a subscriber whose other places are in other processes: enough that a place
/// need not wait for the store, and not so many that the others stand idle beside what one of them has gathered.
pub const QUEUE_JOBS_PER_PLACE: usize = 32;
/// Bodies of all deliveries that wait in memory.
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Tokens of a shared rate are used within this time or not at all. What a slow moment holds back shall not add up to a
/// second burst.
pub const GRANT_VALID_MS: u64 = 100;

/// Tokens that took longer than this to arrive are void: as long as anybody waits for an answer.
pub const GRANT_ANSWER_MAX_MS: u64 = 1_000;

/// How long a token of a gate is kept for a fold that is sealed and read: a commit, and perhaps a wait for memory. After this
/// others may pass before it.
pub const FOLD_PREPARING_MS: u64 = 1_000;

/// Subscribers that one message between replicas names; more are told as "everything". A NOTIFY has room for 8 000 bytes,
/// a number takes twenty.
pub const NEWS_SUBSCRIBERS_MAX: usize = 300;

/// Requests whose bytes are held while they are read, parsed or waiting for their commit.
pub const INGEST_BYTES_IN_FLIGHT_MAX: usize = 128 * 1024 * 1024;
/// Events of one group commit, after which the next group begins: bounds the wait of its first request.
pub const GROUP_EVENTS_MAX: usize = 4096;
/// Rounds in which a group, and then each of its requests alone, is routed again because the configuration moved before it
/// was written. Beyond them a request is refused: nobody shall wait without end for somebody who changes it all the time.
pub const STALE_ROUNDS_MAX: u32 = 5;
/// Parts into which such a group is divided at once: few commits for the many, and one that takes long holds up few.
pub const STALE_PARTS_MAX: usize = 64;

/// Space on the disk that new events leave unless the operator says otherwise: results, retries and retention need some,
/// and SQLite's log may grow by as much before it is brought in.
pub const DISK_RESERVE_DEFAULT_BYTES: u64 = 256 * 1024 * 1024;
/// How old the last look at the disk may be when an event is accepted.
pub const DISK_LOOK_EVERY_MS: u64 = 1_000;
/// Bytes of requests after which the disk is looked at again at once.
pub const DISK_LOOK_BYTES: u64 = 16 * 1024 * 1024;
/// Due work of a healthy subscriber that waits for longer than this is a reason to look.
pub const STUCK_AFTER_MS: u64 = 5 * 60_000;
/// More exhausted deliveries than this are a reason to look.
pub const DEAD_LETTERS_MANY: u64 = 100;
/// How old the answer of `/readyz` about stuck work and dead letters may be: whoever asks often shall not burden the
/// store.
pub const TROUBLE_LOOK_EVERY_MS: u64 = 2_000;
/// After the backlog was counted, this many times what it took pass before it is counted again: counting costs a
/// twentieth of a core at most, however large the backlog is and however many scrape.
pub const COUNT_REST_FACTOR: u32 = 20;
/// Bytes of past events after which a step of a job or a backfill takes no more; the last event or fold may pass it.
pub const STEP_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Events that a backfill takes along with a step because they came since it was prepared: bounds how long others wait for
/// the last step.
pub const BACKFILL_REST_MAX: usize = 1_000;
/// Jobs of one project that run at once: each keeps a step's worth of rows in memory.
pub const JOBS_RUNNING_PER_PROJECT_MAX: usize = 8;
/// Dead letters that one job may name; more are selected by subscriber, type and time.
pub const JOB_IDS_MAX: usize = 1_000;
/// Types that one job may name.
pub const JOB_TYPES_MAX: usize = 100;
/// Events or dead letters that a dry run looks at before it judges the rest by them: about a second's work.
pub const DRY_RUN_ROWS_MAX: u64 = 100_000;
/// Callers whose rate is remembered, for each of the two limits on requests: some hundred bytes each.
pub const RATE_BUCKETS_MAX: usize = 32_768;

/// The longest that anything can be asked to be kept: ten years.
pub const RETENTION_MAX: Duration = Duration::from_hours(10 * 365 * 24);

/// Items of one page when the caller does not say.
pub const PAGE_DEFAULT: usize = 50;
/// Items of one page at most.
pub const PAGE_MAX: usize = 500;
/// Rows one page may look at; a page that found little ends early with a cursor to go on from.
pub const PAGE_ROWS_SCANNED_MAX: usize = 200_000;

/// Points (buckets times series) of one answer about metrics: a day by the minute for some thirty series.
pub const QUERY_POINTS_MAX: usize = 50_000;
/// Points of all pages of one answer together: it is put together in memory for each page.
pub const QUERY_POINTS_PAGED_MAX: usize = 100_000;
/// Buckets of an answer, at most, where nobody said how long they are to be.
pub const QUERY_BUCKETS_DEFAULT: usize = 100;
/// Stored buckets that one answer is made of: some seconds' work.
pub const QUERY_BUCKETS_READ_MAX: i64 = 200_000;
/// Bytes of stored buckets that are read at once for one answer.
pub const QUERY_PORTION_BYTES: i64 = 16 * 1024 * 1024;
/// Answers that are put together at the same time; others wait for their turn.
pub const QUERIES_AT_ONCE: usize = 4;
/// Packed rows of changes of objects that are looked through for one page; with few changes to a row, a moment's work.
pub const HISTORY_ROWS_READ_MAX: usize = 1_000;
/// Changes of objects that are looked through for one page, up to the end of a row: some milliseconds' work.
pub const HISTORY_CHANGES_READ_MAX: usize = 20_000;
/// Percentiles of one answer.
pub const QUERY_PERCENTILES_MAX: usize = 20;
/// Values of one dimension that a question may name.
pub const QUERY_VALUES_MAX: usize = 1_000;

/// A project's id.
pub const PROJECT_ID_BYTES_MAX: usize = 64;
/// Projects of one installation.
pub const PROJECTS_MAX: usize = 10_000;
/// Keys of one project.
pub const KEYS_PER_PROJECT_MAX: usize = 1_000;
/// A signing secret's raw bytes, by Standard Webhooks.
pub const SECRET_BYTES_MIN: usize = 24;
/// A signing secret's raw bytes, by Standard Webhooks.
pub const SECRET_BYTES_MAX: usize = 64;
/// A signing secret that is not a `whsec_` one: a text whose bytes are the key.
pub const SECRET_TEXT_BYTES_MAX: usize = 256;

/// How long a rotated secret goes on signing unless its owner says otherwise: a day to bring the new one everywhere.
pub const SECRET_GRACE_DEFAULT_MS: u64 = 24 * 3_600_000;
/// How long a rotated secret goes on signing at most: a week. Longer, and a leaked one is as good as valid.
pub const SECRET_GRACE_MAX_MS: u64 = 7 * 24 * 3_600_000;
/// The prefix of additional signature headers.
pub const HEADER_PREFIX_BYTES_MAX: usize = 32;

/// The name by which endpoints are asked for consent: a host name's own limit.
pub const ORIGIN_BYTES_MAX: usize = 253;
/// Tries of one verification; after that it is tried on request only.
pub const VERIFICATION_TRIES_MAX: usize = 5;
/// Deliveries one trigger makes due: the commit waits for it.
pub const TRIGGER_DELIVERIES_MAX: usize = 10_000;
/// Former texts of a subscriber's `fold.cancel_on` that are still judged, for windows that were opened with them: each costs
/// what the present one costs. Windows of more distant ones just close in their time.
pub const FORMER_CONDITIONS_MAX: usize = 4;
/// Heads of lanes that step aside when `order.on_failure` changes: everybody's commits wait for it. The others do so when they
/// fail again.
pub const STEP_ASIDE_MAX: usize = 10_000;
/// Tests of one subscriber under way at once: a person's clicks, not a load generator.
pub const SAMPLES_PER_SUBSCRIBER_MAX: usize = 2;
/// Tests of all subscribers under way at once.
pub const SAMPLES_IN_FLIGHT_MAX: usize = 64;

/// The head of a receiver's answer: status line and headers. Its connection buffers no more than this.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 32 * 1024;
/// One header of a receiver's answer that is kept (`content-type`, `retry-after`).
pub const RESPONSE_HEADER_KEPT_BYTES_MAX: usize = 256;
/// Addresses of one name that are tried for one connection.
pub const CONNECT_ADDRESSES_MAX: usize = 8;
/// Names looked up at once, one blocking thread each; the store works on the same threads (tokio has 512).
pub const LOOKUPS_IN_FLIGHT_MAX: usize = 64;

/// Streams at once, over all projects: each reads the store as events come.
pub const STREAMS_MAX: usize = 128;
/// Streams of one project at once, so that one can not take all.
pub const STREAMS_PER_PROJECT_MAX: usize = 32;
/// Events a stream holds at once, between the store and its reader.
pub const STREAM_EVENTS_MAX: usize = 256;
/// Bytes of events after which a stream reads no further before they are sent; one large event may pass it.
pub const STREAM_BYTES_MAX: usize = 256 * 1024;
/// Subscribers with a line of their own in `/metrics`, those with the most work; the rest are one line.
pub const METRICS_SUBSCRIBERS_MAX: usize = 500;
/// Changes of deliveries that are remembered for streams, for all of them together: a few hundred kilobytes.
pub const STREAM_CHANGES_MAX: usize = 4096;

/// Event types that one project's catalog declares: each keeps a compiled schema in memory.
pub const CATALOG_TYPES_PER_PROJECT_MAX: usize = 1_000;
/// A schema as sent. Larger ones describe more than an event.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// What a declared type says about itself.
pub const CATALOG_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Schemas applied to one value from inside each other: references, `allOf` and the like.
pub const SCHEMA_IN_PLACE_MAX: usize = 32;
/// Levels of one check: each takes stack (3 KiB in an unoptimised build) on threads with the usual 2 MiB.
pub const SCHEMA_DEPTH_MAX: usize = 256;
/// Different regular expressions of one schema.
pub const SCHEMA_REGEXES_MAX: usize = 32;
/// Bytes of one compiled regular expression of a schema, and of what it remembers while it searches.
pub const SCHEMA_REGEX_BYTES_MAX: usize = 64 * 1024;
/// Steps that a check by a schema may take whatever the event's size, some ten nanoseconds each.
pub const SCHEMA_STEPS_MIN: u64 = 2_000;
/// Steps that a check may take for each byte of `data`: an ordinary schema takes less than one.
pub const SCHEMA_STEPS_PER_BYTE: u64 = 8;
/// How much of a value a finding repeats.
pub const FINDING_VALUE_CHARS_MAX: usize = 60;
/// Units that one call takes out of the quarantine.
pub const QUARANTINE_UNITS_PER_CALL_MAX: usize = 1_000;
/// Ids that one call about the quarantine may name.
pub const QUARANTINE_IDS_MAX: usize = 1_000;
/// How far ahead of the server's clock an event's `time` may be: a wrong zone, not a wrong year.
pub const TIME_AHEAD_MAX_MS: u64 = 24 * 3_600_000;

/// Counters of one type of events: each costs time for every event, and rows for every bucket.
pub const COUNTERS_PER_TYPE_MAX: usize = 16;
/// Histograms of one type: some twenty times a counter's rows.
pub const HISTOGRAMS_PER_TYPE_MAX: usize = 8;
/// Entries of `states` of one type: an event tells of few objects.
pub const EXTRACTIONS_PER_TYPE_MAX: usize = 8;
/// Attributes that are states, of one entry of `states`.
pub const STATE_ATTRIBUTES_MAX: usize = 8;
/// States that `additional` or `only` of one entry may name.
pub const STATE_TOKENS_MAX: usize = 16;
/// Distinct states that are remembered for each object, the latest ones: what `additional` and `only` look among.
pub const STATES_VISITED_MAX: usize = 64;
/// Indexed attributes of one type: each is written for every event.
pub const INDEX_PATHS_PER_TYPE_MAX: usize = 16;
/// Distinct elements of one list that are indexed for one event: a list is not a document store.
pub const INDEX_ELEMENTS_MAX: usize = 1_000;
/// Dimensions of one metric.
pub const DIMENSIONS_MAX: usize = 8;
/// The name of a metric or of a kind of object; it stands in paths, files and logs.
pub const METRIC_NAME_BYTES_MAX: usize = 64;
/// Series of one metric unless its owner says otherwise; the rest are counted as `(other)`.
pub const METRIC_KEYS_DEFAULT: u32 = 10_000;
/// Series of one metric at most: each may cost a cell in every bucket.
pub const METRIC_KEYS_MAX: u32 = 100_000;
/// How exact a histogram may be: a thousandth takes 500 bins for each factor of e.
pub const ACCURACY_MIN: f64 = 0.001;
/// How inexact a histogram may be: beyond it a quantile says little.
pub const ACCURACY_MAX: f64 = 0.2;
/// How exact a histogram is unless its owner says otherwise: a hundredth.
pub const ACCURACY_DEFAULT: f64 = 0.01;
/// A value of a dimension, a state, an object's id or an indexed text; longer ones stand there by their hash.
pub const OBSERVED_VALUE_BYTES_MAX: usize = 256;
/// What one event may add to a sum, in units of 10⁻⁹: 10²⁰, more than any number of 64 bits, so that a billion of them
/// still add up exactly in 128 bits.
pub const SUM_VALUE_MAX: i128 = 100_000_000_000_000_000_000 * 1_000_000_000;

/// Bytes of bodies that are read for counting at once.
pub const SLICE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of events that were committed and wait in memory to be counted; others are read back.
pub const HELD_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Events that are counted in one transaction: others wait for it.
pub const OBSERVE_BATCH_MAX: usize = 100_000;
/// Threads that read the events of one flush: more than that wait for the one that writes.
pub const OBSERVE_WORKERS_MAX: usize = 64;
/// Events that a backfill of states counts as its last step: nobody can accept any meanwhile.
pub const REBUILD_LAST_MAX: usize = 2_000;
/// Attempts at one step of retention before the round goes on without it: so that one fault does not keep everything
/// else, which fills the disk.
pub const RETENTION_STEP_TRIES_MAX: u32 = 5;
/// Cells that an audit compares at once: some hundred bytes each.
pub const AUDIT_CELLS_MAX: usize = 2_000_000;
/// How long an event may wait to be counted.
pub const OBSERVE_INTERVAL_MAX: Duration = Duration::from_hours(1);

/// A clock that moves further than this by itself has jumped: more than what a late start of NTP or a slow machine explains.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_hours(1);
/// How long a clock must stay where it has jumped to before others follow it: longer than an error of some seconds.
pub const CLOCK_SETTLES_AFTER: Duration = Duration::from_mins(1);
/// How long retention removes nothing after a jump, on a steady clock: time for somebody to read the warning.
pub const REMOVAL_WAIT_MAX: Duration = Duration::from_hours(24);
/// A process that starts waits for one part in so many of the time since its store was last written to. So one that runs for an
/// hour a day still removes something, and one that finds a month has passed waits for the whole time.
pub const REMOVAL_WAIT_PER_GAP: u32 = 24;
/// How long a process that stops tries to write what became of its attempts while the store is away: longer than a restart
/// or a failover of PostgreSQL takes, and within the 30 s that orchestrators give a process to stop.
pub const STOP_WRITES_MAX: Duration = Duration::from_secs(15);
