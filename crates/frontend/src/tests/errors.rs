use super::fake::{Rpc, refusal};
use super::*;
use ostraca_types::Reason;
use tonic::{Code, Status};

/// What each reason of a shard becomes. A new reason fails to compile in `status_and_title`, and
/// belongs here too.
const REASONS: [(Reason, u16, &str, bool); 28] = [
    (Reason::InvalidField, 400, "INVALID_FIELD", false),
    (Reason::KeyMissing, 400, "IDEMPOTENCY_KEY_MISSING", false),
    (
        Reason::KeyMalformed,
        400,
        "IDEMPOTENCY_KEY_MALFORMED",
        false,
    ),
    (Reason::KeyReused, 409, "IDEMPOTENCY_KEY_REUSED", false),
    (Reason::AnswerNotOpened, 500, "ANSWER_NOT_OPENED", false),
    (Reason::TicketRejected, 503, "TICKET_REJECTED", true),
    (Reason::CreateTooLate, 503, "CREATE_TOO_LATE", true),
    (Reason::IdTaken, 503, "ID_TAKEN", true),
    (Reason::PasteNotFound, 404, "PASTE_NOT_FOUND", false),
    (Reason::TokenRejected, 403, "DELETE_TOKEN_REJECTED", false),
    (Reason::WrongShard, 503, "NOT_READY", true),
    (Reason::NotLeader, 503, "NOT_READY", true),
    (Reason::WrongCluster, 503, "NOT_READY", true),
    (Reason::Overloaded, 503, "OVERLOADED", true),
    (Reason::DiskFull, 503, "DISK_FULL", true),
    (Reason::NotReady, 503, "NOT_READY", true),
    (Reason::OutcomeUnknown, 503, "OUTCOME_UNKNOWN", true),
    (Reason::Damaged, 500, "DAMAGED", false),
    (Reason::BodyMissing, 500, "BODY_MISSING", false),
    (Reason::BodyDamaged, 500, "BODY_DAMAGED", false),
    (Reason::BodyStoreDown, 503, "BODY_STORE_DOWN", true),
    (Reason::EmptyBody, 400, "EMPTY_BODY", false),
    (Reason::BodyTooLarge, 413, "BODY_TOO_LARGE", false),
    (Reason::TokenMissing, 401, "DELETE_TOKEN_MISSING", false),
    (Reason::UnknownConsumer, 500, "INTERNAL", false),
    (Reason::TooManyConsumers, 500, "INTERNAL", false),
    (Reason::DeadLetterNotFound, 500, "INTERNAL", false),
    (Reason::DeadlineExceeded, 504, "DEADLINE_EXCEEDED", false),
];

#[tokio::test]
async fn every_reason_of_a_shard_has_its_status() {
    let site = Site::start().await;
    let (id, token) = site.paste("hello").await;
    let bearer = format!("Bearer {token}");
    for (reason, status, text, waits) in REASONS {
        for rpc in [Rpc::Begin, Rpc::Commit, Rpc::Get, Rpc::Delete] {
            site.shard.fail(rpc, Some(refusal(Code::Internal, reason)));
            let answer = match rpc {
                Rpc::Begin | Rpc::Commit => site.post(&site.new_key(), "x").await,
                Rpc::Get => site.get(&format!("/{id}/raw")).await,
                Rpc::Delete => {
                    let uri = format!("/api/v1/pastes/{id}");
                    let headers = [("authorization", bearer.as_str())];
                    site.send(Method::DELETE, &uri, &headers, Body::empty())
                        .await
                }
            };
            site.shard.fail(rpc, None);
            answer.expect(status, text);
            let kebab = text.to_lowercase().replace('_', "-");
            assert_eq!(
                answer.field("type"),
                format!("https://ostraca.dev/problems/{kebab}")
            );
            assert_eq!(
                answer.header("retry-after").is_some(),
                waits,
                "{reason:?} {rpc:?}"
            );
            assert!(!answer.text().contains(&token));
        }
    }
}

/// Goal: the documentation has every reason, beside its status, and no other.
#[test]
fn every_reason_is_documented() {
    const DOCUMENT: &str = include_str!("../../../../docs/http-api.md");
    let (_, table) = DOCUMENT
        .split_once("| status | reason |")
        .expect("the table");
    let mut documented: Vec<(u16, &str)> = Vec::new();
    for row in table.lines().skip(2).take_while(|row| row.starts_with('|')) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let status = cells.next().and_then(|status| status.parse().ok());
        let reasons = cells.next().unwrap_or_default().split(", ");
        documented.extend(reasons.map(|one| (status.unwrap_or(0), one.trim_matches('`'))));
    }
    let mut sent: Vec<(u16, &str)> = REASONS.map(|(_, status, text, _)| (status, text)).into();
    sent.extend([
        (404, "NOT_FOUND"),
        (405, "METHOD_NOT_ALLOWED"),
        (408, "REQUEST_TIMEOUT"),
        (415, "UNSUPPORTED_ENCODING"),
    ]);
    for list in [&mut documented, &mut sent] {
        list.sort_unstable();
        list.dedup();
    }
    assert_eq!(documented, sent);
}

#[tokio::test]
async fn an_error_of_nobody_is_unknown_for_a_write_and_not_for_a_read() {
    let site = Site::start().await;
    let (id, _) = site.paste("hello").await;
    for code in [
        Code::Unknown,
        Code::Internal,
        Code::Cancelled,
        Code::Unavailable,
    ] {
        let status = Status::new(code, "a proxy's own words");
        site.shard.fail(Rpc::Commit, Some(status.clone()));
        site.shard.fail(Rpc::Get, Some(status));
        let create = site.post(&site.new_key(), "x").await;
        create.expect(503, "OUTCOME_UNKNOWN");
        assert!(!create.text().contains("proxy"), "{}", create.text());
        site.get(&format!("/{id}")).await.expect(503, "NOT_READY");
    }
    site.shard
        .fail(Rpc::Commit, Some(Status::invalid_argument("too long")));
    site.post(&site.new_key(), "x")
        .await
        .expect(500, "INTERNAL");
}

#[tokio::test]
async fn errors_have_one_shape_at_every_layer() {
    let site = Site::start().await;
    site.get("/no/such/page").await.expect(404, "NOT_FOUND");
    let wrong = site
        .send(Method::PUT, "/api/v1/pastes", &[], Body::empty())
        .await;
    wrong.expect(405, "METHOD_NOT_ALLOWED");
    assert_eq!(wrong.header("allow"), Some("POST"));
    let wrong = site
        .send(Method::POST, "/00abcdefghijkl", &[], Body::empty())
        .await;
    wrong.expect(405, "METHOD_NOT_ALLOWED");
    assert_eq!(wrong.header("allow"), Some("GET,HEAD"));
    let wrong = site
        .send(Method::PATCH, "/api/v1/pastes/x", &[], Body::empty())
        .await;
    let allow = wrong.header("allow").expect("methods");
    assert!(allow.contains("GET") && allow.contains("DELETE"), "{allow}");
    let browser = [("accept", "text/html,*/*;q=0.8")];
    let page = site
        .send(Method::GET, "/no/such/page", &browser, Body::empty())
        .await;
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(
        page.text().contains("<h1>No such page</h1>"),
        "{}",
        page.text()
    );
    let text = [("accept", "text/plain")];
    let text = site
        .send(Method::GET, "/00abcdefghijkl", &text, Body::empty())
        .await;
    assert_eq!(
        text.header("content-type"),
        Some("text/plain; charset=utf-8")
    );
    assert!(text.text().ends_with("(PASTE_NOT_FOUND)\n"));
}
