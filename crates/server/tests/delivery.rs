//! Outbox and inbox over a real socket and a real disk.

mod running;

use std::time::Duration;

use ostraca_io::ManualClock;
use ostraca_proto::v1;
use ostraca_proto::v1::SettleResult;
use ostraca_types::Reason;
use running::{HOUR, Running, START, create_and_delete, start};
use tonic::Code;
use tonic::transport::Channel;
use tonic_types::StatusExt as _;
use v1::inbox_service_client::InboxServiceClient;
use v1::outbox_service_client::OutboxServiceClient;

const DAY: Duration = Duration::from_secs(86_400);

struct Services {
    dir: tempfile::TempDir,
    clock: ManualClock,
    running: Running,
    outbox: OutboxServiceClient<Channel>,
    inbox: InboxServiceClient<Channel>,
}

async fn services() -> Services {
    let (dir, clock) = running::new();
    let running = start(dir.path(), 0, &clock).await.expect("serving");
    connected(dir, clock, running)
}

fn connected(dir: tempfile::TempDir, clock: ManualClock, running: Running) -> Services {
    let channel = running.channel();
    Services {
        dir,
        clock,
        running,
        outbox: OutboxServiceClient::new(channel.clone()),
        inbox: InboxServiceClient::new(channel),
    }
}

impl Services {
    async fn restart(self) -> Self {
        self.running.stop().await;
        let running = start(self.dir.path(), 0, &self.clock)
            .await
            .expect("serving again");
        connected(self.dir, self.clock, running)
    }

    async fn receive(&mut self, wait_ms: u32) -> Vec<v1::Message> {
        let request = v1::ReceiveRequest {
            consumer: "purge".to_owned(),
            max_messages: 100,
            wait_ms,
            visibility_ms: 0,
        };
        self.outbox
            .receive(request)
            .await
            .expect("received")
            .into_inner()
            .messages
    }

    async fn ack(&mut self, messages: &[v1::Message]) -> Vec<SettleResult> {
        let handles = messages
            .iter()
            .map(|message| message.handle.clone())
            .collect();
        let request = v1::AckRequest {
            consumer: "purge".to_owned(),
            handles,
        };
        let response = self
            .outbox
            .ack(request)
            .await
            .expect("settled")
            .into_inner();
        response.results().collect()
    }

    async fn nack(&mut self, message: &v1::Message) -> SettleResult {
        let request = v1::NackRequest {
            consumer: "purge".to_owned(),
            handle: message.handle.clone(),
            reason: "no route".to_owned(),
            delay_ms: 0,
        };
        self.outbox
            .nack(request)
            .await
            .expect("settled")
            .into_inner()
            .result()
    }

    async fn advance(&self, by: Duration) {
        running::advance(&self.running, &self.clock, by).await;
    }

    async fn dead_letters(&mut self) -> Vec<v1::DeadLetter> {
        let mut letters = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = v1::ListDeadLettersRequest {
                consumer: "purge".to_owned(),
                page_size: 2,
                page_token,
            };
            let page = self
                .outbox
                .list_dead_letters(request)
                .await
                .expect("listed")
                .into_inner();
            assert!(page.dead_letters.len() <= 2);
            letters.extend(page.dead_letters);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return letters;
            }
        }
    }
}

#[tokio::test]
async fn r04_o01_a_paste_ends_once_with_one_message() {
    let mut services = services().await;
    let deleted = create_and_delete(&services.running).await;
    let kept = running::create(&services.running.client(), &running::key())
        .await
        .expect("created");
    let messages = services.receive(0).await;
    assert_eq!(messages.len(), 1);
    let message = &messages[0];
    assert_eq!(message.paste_id, deleted.to_string());
    assert_eq!(message.object_key, deleted.object_key());
    assert_eq!(message.cause(), v1::EndCause::Deleted);
    assert_eq!(message.outbox_id.len(), 22);
    assert_eq!(
        message.outbox_id[..2],
        message.paste_id[..2],
        "the id tells its slot"
    );
    // Its expiry comes too, and changes nothing; the other one expires.
    services.advance(Duration::from_secs(600)).await;
    let messages = loop {
        let messages = services.receive(1000).await;
        if messages
            .iter()
            .any(|message| message.cause() == v1::EndCause::Expired)
        {
            break messages;
        }
    };
    let expired: Vec<_> = messages
        .iter()
        .filter(|message| message.cause() == v1::EndCause::Expired)
        .collect();
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].paste_id, kept.paste_id.to_string());
    let again = messages
        .iter()
        .find(|again| again.paste_id == message.paste_id);
    assert!(again.is_none_or(|again| again.outbox_id == message.outbox_id));
    services.running.stop().await;
}

#[tokio::test]
async fn o02_o03_an_unacked_message_comes_again_and_late_acks_change_nothing() {
    let mut services = services().await;
    create_and_delete(&services.running).await;
    let first = services.receive(0).await;
    assert_eq!(services.receive(0).await.len(), 0, "it is in flight");
    // Also across a restart, which keeps the handle good.
    let mut services = services.restart().await;
    assert_eq!(services.receive(0).await.len(), 0, "it still is");
    services.advance(Duration::from_secs(32)).await;
    let second = services.receive(5000).await;
    assert_eq!(second.len(), 1);
    assert_eq!(
        (second[0].attempt, &second[0].outbox_id),
        (2, &first[0].outbox_id)
    );
    assert_ne!(second[0].handle, first[0].handle);
    assert_eq!(services.ack(&first).await, [SettleResult::Stale]);
    assert_eq!(services.nack(&first[0]).await, SettleResult::Stale);
    let extend = v1::ExtendRequest {
        consumer: "purge".to_owned(),
        handle: second[0].handle.clone(),
        visibility_ms: 3_600_000,
    };
    let extended = services
        .outbox
        .extend(extend)
        .await
        .expect("settled")
        .into_inner();
    assert_eq!(extended.result(), SettleResult::Done);
    services.advance(HOUR - Duration::from_secs(1)).await;
    assert_eq!(services.receive(0).await.len(), 0, "it takes longer");
    assert_eq!(services.ack(&second).await, [SettleResult::Done]);
    assert_eq!(services.ack(&second).await, [SettleResult::Gone]);
    services.advance(HOUR).await;
    assert_eq!(services.receive(0).await.len(), 0, "done is done");
    services.running.stop().await;
}

#[tokio::test]
async fn o04_o05_a_failing_message_becomes_a_dead_letter_and_can_be_replayed() {
    let mut services = services().await;
    for _ in 0..3 {
        create_and_delete(&services.running).await;
    }
    for attempt in 1..=13 {
        let messages = services.receive(5000).await;
        assert_eq!(messages.len(), 3, "attempt {attempt}");
        assert!(
            services.dead_letters().await.is_empty(),
            "attempt {attempt}"
        );
        for message in &messages {
            assert_eq!(services.nack(message).await, SettleResult::Done);
        }
        // An hour's outage dead-letters nothing; after 12 h and 12 attempts it is one.
        services.advance(HOUR).await;
        if services.dead_letters().await.len() == 3 {
            assert!(attempt >= 12, "{attempt}");
            break;
        }
    }
    let letters = services.dead_letters().await;
    assert_eq!(letters.len(), 3);
    assert_eq!(letters[0].last_error, "no route");
    assert!(letters[0].attempts >= 12);
    assert_eq!(services.receive(0).await.len(), 0);

    let mut services = services.restart().await;
    assert_eq!(services.dead_letters().await, letters, "they are durable");
    let replay = v1::ReplayDeadLetterRequest {
        consumer: "purge".to_owned(),
        outbox_id: letters[1].outbox_id.clone(),
    };
    services
        .outbox
        .replay_dead_letter(replay.clone())
        .await
        .expect("replayed");
    let again = services.receive(0).await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].outbox_id, letters[1].outbox_id);
    assert_eq!(services.ack(&again).await, [SettleResult::Done]);
    assert_eq!(services.dead_letters().await.len(), 2);
    let refused = services
        .outbox
        .replay_dead_letter(replay.clone())
        .await
        .expect_err("done");
    assert_eq!(refused.code(), Code::NotFound);
    // 7 days after its end a message is gone, replay included.
    services.advance(7 * DAY).await;
    let late = v1::ReplayDeadLetterRequest {
        outbox_id: letters[0].outbox_id.clone(),
        ..replay
    };
    let refused = services
        .outbox
        .replay_dead_letter(late)
        .await
        .expect_err("too old");
    let details = refused.get_error_details();
    let reason = details.error_info().expect("details").reason.as_str();
    assert_eq!(reason, Reason::DeadLetterNotFound.as_str());
    services.running.stop().await;
}

#[tokio::test]
async fn o06_a_consumer_that_does_nothing_holds_nobody_up() {
    let mut services = services().await;
    let register = v1::RegisterConsumerRequest {
        consumer: "mirror".to_owned(),
    };
    services
        .outbox
        .register_consumer(register.clone())
        .await
        .expect("registered");
    services
        .outbox
        .register_consumer(register)
        .await
        .expect("registered before");
    create_and_delete(&services.running).await;
    let messages = services.receive(0).await;
    assert_eq!(services.ack(&messages).await, [SettleResult::Done]);
    let request = v1::StreamMessagesRequest {
        consumer: "mirror".to_owned(),
        ..Default::default()
    };
    let mut stream = services
        .outbox
        .stream_messages(request)
        .await
        .expect("a stream")
        .into_inner();
    let message = stream.message().await.expect("a message").expect("one");
    assert_eq!(message.outbox_id, messages[0].outbox_id);
    // The stream goes on as messages become due.
    create_and_delete(&services.running).await;
    let next = stream.message().await.expect("a message").expect("one");
    assert_ne!(next.outbox_id, message.outbox_id);
    let nobody = v1::ReceiveRequest {
        consumer: "nobody".to_owned(),
        ..Default::default()
    };
    let refused = services.outbox.receive(nobody).await.expect_err("unknown");
    assert_eq!(refused.code(), Code::InvalidArgument);
    drop(stream);
    services.running.stop().await;
}

#[tokio::test]
async fn a_long_poll_hears_of_an_end_at_once() {
    let mut services = services().await;
    let client = services.running.client();
    let answer = running::create(&client, &running::key())
        .await
        .expect("created");
    let poll = tokio::time::timeout(Duration::from_secs(10), services.receive(20_000));
    let delete = client.delete_paste(&answer.paste_id, &answer.delete_token);
    let (messages, deleted) = tokio::join!(poll, delete);
    deleted.expect("deleted");
    assert_eq!(messages.expect("well before the wait is over").len(), 1);
    services.running.stop().await;
}

#[tokio::test]
async fn i06_i01_i05_inbox_rows_are_durable_and_live_for_8_days() {
    let mut services = services().await;
    create_and_delete(&services.running).await;
    let outbox_id = services.receive(0).await[0].outbox_id.clone();
    let record = |consumer: &str| v1::RecordInboxRequest {
        consumer: consumer.to_owned(),
        outbox_id: outbox_id.clone(),
    };
    let contains = |consumer: &str| v1::ContainsInboxRequest {
        consumer: consumer.to_owned(),
        outbox_id: outbox_id.clone(),
    };
    let recorded = services
        .inbox
        .record_inbox(record("purge"))
        .await
        .expect("recorded");
    assert!(!recorded.into_inner().already_recorded);
    let other = services
        .inbox
        .contains_inbox(contains("mirror"))
        .await
        .expect("answered");
    assert!(
        !other.into_inner().recorded,
        "consumers never suppress each other"
    );
    let recorded = services
        .inbox
        .record_inbox(record("mirror"))
        .await
        .expect("recorded");
    assert!(!recorded.into_inner().already_recorded);

    let mut services = services.restart().await;
    services.advance(8 * DAY - Duration::from_secs(1)).await;
    let there = services
        .inbox
        .contains_inbox(contains("purge"))
        .await
        .expect("answered");
    assert!(
        there.into_inner().recorded,
        "a copy redelivered at 7 days is a no-op"
    );
    services.advance(Duration::from_secs(2)).await;
    let there = services
        .inbox
        .contains_inbox(contains("purge"))
        .await
        .expect("answered");
    assert!(!there.into_inner().recorded, "after 8 days it runs again");
    let recorded = services
        .inbox
        .record_inbox(record("purge"))
        .await
        .expect("recorded");
    assert!(!recorded.into_inner().already_recorded);
    services.running.stop().await;
}

#[tokio::test]
async fn d06_a_leap_ends_nothing_until_a_person_confirms_it() {
    let mut services = services().await;
    let client = services.running.client();
    let answer = running::create(&client, &running::key())
        .await
        .expect("created");
    services.clock.step_wall(START.plus(DAY));
    services.clock.advance(Duration::from_secs(15));
    let address = services.running.address.to_string();
    let status = loop {
        let status = client.status_of(&address).await.expect("a status");
        if !status.trouble.is_empty() {
            break status;
        }
    };
    assert!(status.trouble.contains("leapt"), "{}", status.trouble);
    client
        .get_paste(&answer.paste_id)
        .await
        .expect("it did not expire by the leap");
    assert_eq!(services.receive(0).await.len(), 0);
    let mut cluster =
        v1::cluster_service_client::ClusterServiceClient::new(services.running.channel());
    cluster
        .confirm_clock(v1::ConfirmClockRequest {})
        .await
        .expect("confirmed");
    assert_eq!(services.receive(10_000).await.len(), 1, "now it has ended");
    services.running.stop().await;
}

/// What a person is paged by, in numbers; nothing that is a secret.
#[tokio::test]
async fn w03_metrics_tell_the_state_and_no_secret() {
    let mut services = services().await;
    let client = services.running.client();
    let key = running::key();
    let answer = running::create(&client, &key).await.expect("created");
    running::create(&client, &key).await.expect("replayed");
    client
        .delete_paste(&answer.paste_id, &answer.delete_token)
        .await
        .expect("deleted");
    services.advance(Duration::from_secs(90)).await;
    let text = services.running.metrics().await;
    let value = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not there:\n{text}"));
        line.rsplit(' ')
            .next()
            .expect("a value")
            .parse::<f64>()
            .expect("a number")
    };
    assert!((value("ostraca_commits_total") - 2.0).abs() < 0.1);
    assert!(value("ostraca_syncs_total") >= 2.0);
    assert!((value("ostraca_commit_batch_commands_count") - 2.0).abs() < 0.1);
    assert!((value("ostraca_outcomes_total{outcome=\"deleted\"}") - 1.0).abs() < 0.1);
    assert!((value("ostraca_outbox_pending") - 1.0).abs() < 0.1);
    assert!((value("ostraca_outbox_oldest_age_seconds") - 90.0).abs() < 1.0);
    assert!(value("ostraca_outbox_dead_letters").abs() < 0.1);
    assert!((value("ostraca_shard_serving") - 1.0).abs() < 0.1);
    for secret in [
        key.expose_text(),
        answer.delete_token.expose_text(),
        answer.paste_id.to_string(),
    ] {
        assert!(!text.contains(&secret));
    }
    let messages = services.receive(0).await;
    assert_eq!(services.ack(&messages).await, [SettleResult::Done]);
    let text = services.running.metrics().await;
    assert!(
        text.contains("ostraca_outbox_oldest_age_seconds 0"),
        "{text}"
    );
    services.running.stop().await;
}

#[tokio::test]
async fn w02_dead_letters_are_counted_and_wait_for_a_person() {
    let mut services = services().await;
    create_and_delete(&services.running).await;
    while services.dead_letters().await.is_empty() {
        for message in services.receive(0).await {
            assert_eq!(services.nack(&message).await, SettleResult::Done);
        }
        services.advance(HOUR).await;
        // A message that is given up on the way is given up by a delivery.
        services.receive(0).await;
    }
    let text = services.running.metrics().await;
    assert!(text.contains("\nostraca_outbox_dead_letters 1\n"), "{text}");
    // It is nobody's work any more, so it does not make the oldest message older (w03).
    assert!(
        text.contains("\nostraca_outbox_oldest_age_seconds 0"),
        "{text}"
    );
    services.running.stop().await;
}
