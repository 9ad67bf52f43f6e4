//! Every error code of the API: what causes it and what to do about it.
//!
//! One table, from which come the page `/docs/errors`, to which every problem's `type` points, and the list of codes in
//! `/openapi.json`. A test holds it to the sources: a code without its line here does not pass.

/// A code, when it occurs, and the remedy.
pub(super) struct ErrorCode {
    /// As in a problem's `code`.
    pub(super) code: &'static str,
    /// When it occurs.
    pub(super) cause: &'static str,
    /// What to do about it.
    pub(super) remedy: &'static str,
}

const fn error(code: &'static str, cause: &'static str, remedy: &'static str) -> ErrorCode {
    ErrorCode { code, cause, remedy }
}

/// All of them, in order of the alphabet.
pub(super) const ERRORS: &[ErrorCode] = &[
    error(
        "audit_too_large",
        "The events of a type add up to more than can be compared at once.",
        "Narrow `from` and `to`, for example to a day.",
    ),
    error(
        "body_incomplete",
        "The connection broke while the body was sent.",
        "Send the request again; nothing was accepted.",
    ),
    error(
        "body_timeout",
        "The body did not arrive within 30 seconds, or after 10 seconds it came more slowly than 1 KiB per second.",
        "Send smaller requests, or over a faster connection; nothing was accepted.",
    ),
    error(
        "changed_meanwhile",
        "Somebody else changed the same thing at the same moment, several times in a row.",
        "Read it again and repeat the change.",
    ),
    error(
        "condition_invalid",
        "A condition (`match.where`, `fold.bypass`, `fold.cancel_on`, a counter's `where`) can not be compiled, or is too large to be judged quickly.",
        "Correct the CEL expression; the detail says where it goes wrong.",
    ),
    error(
        "conflict",
        "The change contradicts what is there.",
        "Read what is there, then change one of the two.",
    ),
    error(
        "cursor_invalid",
        "A cursor was not given by this API.",
        "Pass on `next` of a page, or `id` of a stream, as it came.",
    ),
    error(
        "delivery_cancelled",
        "The delivery's subscriber was deleted, or its window was cancelled before it left.",
        "Replay its events; if the subscriber was deleted, create it again first.",
    ),
    error(
        "delivery_delivered",
        "The delivery has arrived already.",
        "Nothing; to send it once more, replay its event.",
    ),
    error(
        "delivery_expired",
        "Nobody took the delivery for as long as it was kept.",
        "Replay its event, if that is still there.",
    ),
    error(
        "delivery_in_flight",
        "An attempt is under way right now, or waits for nothing but its turn, its gate or its rate.",
        "Wait for its result; the detail says what it waits for.",
    ),
    error(
        "delivery_unknown",
        "An id of `ids` is no delivery's.",
        "Take ids from `GET /v1/dead-letters` or `GET /v1/deliveries`.",
    ),
    error(
        "disk_reserve",
        "The disk has less room than `store.disk_reserve` keeps free; nothing was accepted.",
        "Send it again later; the operator frees some space or enlarges the disk, without a restart.",
    ),
    error(
        "duration_invalid",
        "A duration can not be read, or is outside its bounds.",
        "Write it like `250ms`, `60s`, `5m`, `2h` or `7d`.",
    ),
    error(
        "encoding_corrupt",
        "The body is not what its `content-encoding` says.",
        "Compress it again, or send it as it is; nothing was accepted.",
    ),
    error(
        "encoding_unsupported",
        "The body is compressed in a way this API does not read.",
        "Use `gzip` or `zstd`, or send it as it is.",
    ),
    error(
        "endpoint_unverified",
        "The endpoint has not agreed to receive anything yet.",
        "Let it answer the verification, then ask again with `POST /v1/subscribers/{id}/verify`.",
    ),
    error("event_ambiguous", "Several sources use this event id.", "Say which one with `?source=`."),
    error(
        "event_conflict",
        "An event with this source and id but other content was accepted before.",
        "Give the new event an id of its own; nothing changed.",
    ),
    error(
        "event_too_large",
        "An event has more than 1 MiB.",
        "Keep large payloads elsewhere and send a link.",
    ),
    error(
        "event_unmatched",
        "No subscriber, or not the one named, wants this event by its present rules.",
        "Change what it matches, or name another subscriber.",
    ),
    error(
        "extension_name",
        "An extension attribute has a name that can not be used.",
        "Use up to 64 of a-z, 0-9, `_` and `-`.",
    ),
    error(
        "extension_value",
        "An extension attribute is a list or an object.",
        "Put it in `data`; extension attributes are strings, numbers, booleans or null.",
    ),
    error(
        "field_base64",
        "`data_base64` is not base64.",
        "Encode it with the standard alphabet and padding.",
    ),
    error(
        "field_characters",
        "A text contains white space or control characters where it may not.",
        "Remove them.",
    ),
    error("field_conflict", "Two fields exclude each other.", "Send one of them."),
    error("field_empty", "A field is empty.", "Fill it in or leave it out."),
    error("field_fixed", "A field can not change once it is made.", "Create a new one with the other value."),
    error("field_missing", "A field that is needed is absent.", "Add the field that `field` names."),
    error(
        "field_range",
        "A number is outside its bounds, or a range ends before it begins.",
        "Use a number within the bounds that the detail names, and let `to` be after `from`.",
    ),
    error("field_repeated", "A field stands twice.", "Send it once."),
    error("field_time", "A time can not be read.", "Write RFC 3339, for example `2026-01-31T09:30:00Z`."),
    error("field_too_long", "A text is longer than allowed.", "Shorten it to what the detail names."),
    error("field_too_many", "A list has too many items.", "Send fewer."),
    error(
        "field_type",
        "A field has a value of the wrong type.",
        "Send the type that the API description lists.",
    ),
    error("field_unknown", "There is no field of this name.", "Check its spelling, or put it in `data`."),
    error(
        "field_value",
        "A field has a value that is not one of those allowed.",
        "Use one of the values in the detail.",
    ),
    error("flag_invalid", "A parameter that is on or off has another value.", "Say `true` or `false`."),
    error(
        "fold_term",
        "A term of `fold` belongs to another mode than the one given, or needs a `gate` that is not named.",
        "Remove it, or give what it needs.",
    ),
    error(
        "fold_unsupported",
        "This version does not know that fold mode.",
        "Use `each`, `window`, `quiet` or `batch`.",
    ),
    error(
        "gate_busy",
        "No token of the gate came within `wait`, or within the 10 s that a test of a subscriber waits.",
        "Come back after `retry-after` seconds; who acquires may also wait longer with `?wait=`, up to 60s.",
    ),
    error(
        "gate_full",
        "As many clients wait at the gate as it takes.",
        "Come back after `retry-after` seconds.",
    ),
    error(
        "gate_in_use",
        "A subscriber passes the gate that is to be deleted.",
        "Change or delete the subscriber first; the answer names one.",
    ),
    error(
        "gate_unknown",
        "A subscriber names a gate that is not there.",
        "Make it with `PUT /v1/gates/{name}`, or correct the name.",
    ),
    error("header_invalid", "A `ce-` header can not be read.", "Percent-encode it as CloudEvents says."),
    error(
        "header_masked",
        "A header's value was sent back as it is shown, masked, and there is none of that name to keep.",
        "Send the value itself.",
    ),
    error(
        "header_refused",
        "A custom header may not be sent, or is not a header.",
        "Choose another name; framing, routing and signature headers are reserved.",
    ),
    error(
        "id_invalid",
        "An id has characters or a length that it may not have.",
        "Use letters, digits, `_`, `-` and `.`, at most 64 of them.",
    ),
    error(
        "idempotency_key_conflict",
        "The event has an `id` that is not the `idempotency-key`.",
        "Give one of the two, or the same text in both.",
    ),
    error(
        "idempotency_key_invalid",
        "The `idempotency-key` is empty, too long, or has characters that can not be seen.",
        "Use 1 to 255 visible ASCII characters.",
    ),
    error(
        "idempotency_key_unsuitable",
        "An `idempotency-key` came with more than one event.",
        "Give each event its own `id` instead.",
    ),
    error(
        "job_ended",
        "The job has come to its end already.",
        "Nothing; `GET /v1/jobs/{id}` shows how it ended.",
    ),
    error(
        "jobs_running",
        "The project has as many running jobs as it may have.",
        "Wait until one ends, or stop one.",
    ),
    error("json_encoding", "The body is not UTF-8.", "Encode it as UTF-8."),
    error(
        "json_syntax",
        "The body is not JSON.",
        "Correct it; the detail says at which line and column it goes wrong.",
    ),
    error("json_too_deep", "The JSON nests deeper than 64 levels.", "Flatten it, or send it as a string."),
    error(
        "key_invalid",
        "There is no key, or it is not valid.",
        "Send `authorization: Bearer tgk_…` with a key of this installation.",
    ),
    error(
        "key_last",
        "It is the installation's last key.",
        "Make another one first; without any, nobody could manage anything.",
    ),
    error(
        "kind_unknown",
        "`kinds` names something that a stream does not show.",
        "Use `event`, `delivery` or both.",
    ),
    error("limit_invalid", "`limit` is not a number from 1 to 500.", "Use one that is."),
    error(
        "master_key_external",
        "The master key is given by the operator's environment, so the server can not change it.",
        "Change it there: set `TIDEGATE_MASTER_KEY` to the new one and `TIDEGATE_MASTER_KEY_PREVIOUS` to the old one, and restart.",
    ),
    error(
        "master_key_unwritable",
        "The file of the master key can not be written.",
        "Let the server's user write in its data directory, and try again.",
    ),
    error(
        "media_type_unsupported",
        "The content type is not understood.",
        "Send JSON, NDJSON or CloudEvents.",
    ),
    error(
        "method_not_allowed",
        "The path is right and the method is not.",
        "Use one of the methods in the `allow` header.",
    ),
    error(
        "metric_unknown",
        "There is no such counter, histogram, state or index.",
        "Declare it in the catalog, or look at what the type declares.",
    ),
    error(
        "not_found",
        "There is no such thing in this project, or it belongs to another one.",
        "Check the id, and the project that the key acts on.",
    ),
    error(
        "not_kept",
        "A question about counters, histograms or states needs buckets that are no longer kept.",
        "Ask for longer buckets (`every`) or for a later time; the detail says which are kept.",
    ),
    error(
        "order_not_folded",
        "A fold and an order do not fit: what is in one window can not be in several lanes.",
        "Add the path of `order.by` to `fold.by`.",
    ),
    error(
        "order_unfinished",
        "`order.by` was to change while deliveries or open windows of the old order are unfinished; those of the new could pass them.",
        "Close its windows with `POST /v1/windows/flush` and wait until its deliveries have ended, or delete the subscriber and create another. The rest of `order` can change at any time.",
    ),
    error(
        "overloaded",
        "Too much is under way, or the configuration changes faster than events can be routed; nothing of the request was accepted.",
        "Send it again after `retry-after` seconds, with the same ids.",
    ),
    error(
        "parameter_repeated",
        "A query parameter stands twice.",
        "Send it once; several values are separated by commas where that is allowed.",
    ),
    error(
        "parameter_unknown",
        "There is no query parameter of this name.",
        "Check its spelling; the detail lists those that exist.",
    ),
    error(
        "path_invalid",
        "An attribute path can not be read.",
        "Write it like `subject`, `data.order.id` or `data.items.0`, without brackets.",
    ),
    error("path_unknown", "Nothing is served at this path.", "See `/docs` for all paths."),
    error(
        "pattern_invalid",
        "A pattern of types or sources can not be read.",
        "Write a name, `name.*` or `*`.",
    ),
    error("project_default", "The project `default` can not be deleted.", "Delete what is in it instead."),
    error(
        "project_id_invalid",
        "A project's id has other characters than it may.",
        "Use 1 to 64 of a-z, 0-9, `-` and `_`.",
    ),
    error(
        "query_too_large",
        "The answer about metrics would have too many points, or be made of too many stored buckets.",
        "Ask for a coarser `every`, less time or fewer series; the detail names an interval that works.",
    ),
    error(
        "quota_exceeded",
        "A project, or the installation, has as many of these as it may have.",
        "Delete what is no longer used.",
    ),
    error(
        "rate_invalid",
        "A rate can not be read, or is outside its bounds.",
        "Write it like `10/s`, `100/m` or `5/h`.",
    ),
    error(
        "rate_limited",
        "The key or the address has made more requests than the operator allows.",
        "Wait for `retry-after`, then go on more slowly.",
    ),
    error(
        "reason_unknown",
        "There is no such reason for a quarantine.",
        "Use one of those that the detail lists.",
    ),
    error("request_too_large", "The request has more than 16 MiB.", "Split it."),
    error(
        "role_insufficient",
        "The key's role does not allow this.",
        "Use a key whose role does; the detail says which.",
    ),
    error(
        "schema_invalid",
        "A schema is not JSON Schema 2020-12, or uses what is not supported.",
        "Correct it where the field points.",
    ),
    error(
        "schema_reference",
        "A schema refers to something outside itself.",
        "Bring what it refers to into `$defs`.",
    ),
    error(
        "schema_too_large",
        "A schema has more bytes or parts than a type may have.",
        "Make it smaller, or split the type.",
    ),
    error(
        "secret_invalid",
        "A signing secret can not be used.",
        "Leave it out to get a new one, or send `whsec_` and the base64 of 24 to 64 bytes.",
    ),
    error(
        "selector_invalid",
        "It is not clear which are meant.",
        "Select some by the fields that the detail lists; or say `\"all\": true` alone.",
    ),
    error(
        "signing_conflict",
        "Two wishes about signing exclude each other.",
        "Send one of them; the detail says which.",
    ),
    error(
        "source_reserved",
        "The source `tidegate` is for events that the gateway itself sends.",
        "Publish under another source.",
    ),
    error("specversion_unsupported", "The version of CloudEvents is not 1.0.", "Send version 1.0."),
    error("status_unknown", "There is no delivery status of this name.", "Use one that the detail lists."),
    error(
        "store_unavailable",
        "The store does not answer, or could lose what it is given: whether anything was kept is not known.",
        "Send events again shortly, with the same ids: what was kept is a duplicate then. Look before you repeat a change. If it lasts, look at `/readyz` and the server's log and disk.",
    ),
    error(
        "streams_exhausted",
        "Too many streams are open, in the project or in all.",
        "Close one, or try again later.",
    ),
    error("tests_in_flight", "Several tests of this subscriber are under way.", "Wait for their answers."),
    error(
        "time_invalid",
        "A time in a query can not be read.",
        "Write RFC 3339, for example `2026-01-31T09:30:00Z`.",
    ),
    error("time_order", "A range ends before it begins.", "Let `to` be after `from`."),
    error("too_many_events", "The request has more than 10 000 events, sub-events counted.", "Split it."),
    error(
        "url_refused",
        "An endpoint's address may not be used.",
        "Use a public https address; others must be allowed by the operator (`egress.allow`).",
    ),
    error(
        "verification_none",
        "The subscriber's endpoint is not asked for its consent.",
        "Set `verification` to `challenge` or `cloudevents` first.",
    ),
    error(
        "where_not_searchable",
        "A search asks for something that indexes can not answer, such as an attribute that is not indexed.",
        "Compare indexed attributes with fixed values; the detail names the part. Declare what is missing in `index` of the type.",
    ),
    error(
        "window_key_invalid",
        "A window's key does not have exactly the members that the subscriber folds by.",
        "Copy the key from `GET /v1/windows`.",
    ),
];

#[cfg(test)]
mod tests;
