//! Suspects among processes: only the end of one that was sending it sets one aside.

use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_store::Claim;

use super::*;

/// Two processes; the first holds a suspect.
async fn holding(
    schema: &Schema,
    url: &str,
    lane: Option<i64>,
) -> (PostgresStore, PostgresStore, Vec<Claim>) {
    let (holder, other) = (schema.open(url, NOW).await, schema.open(schema.url(), NOW).await);
    let subscriber = subscriber(&other).await;
    let to = [Route::alone(subscriber, lane)];
    send(&other, &["1"], &to).await;
    other.leave(NOW).await.unwrap();
    let session = connect(schema).await;
    let lost = format!("UPDATE deliveries SET lost = {CLAIMS_LOST_MAX}");
    session.client.batch_execute(&lost).await.unwrap();
    let other = schema.open(schema.url(), NOW).await;
    let refills = vec![Refill { subscriber, jobs: 9 }];
    let group = Group { now: NOW, refills, room: Room::new(1 << 20), ..Group::default() };
    let jobs = holder.commit(Arc::new(group)).await.unwrap().jobs;
    assert!(jobs.len() == 1 && jobs[0].is_suspect);
    (holder, other, jobs.iter().map(Claim::of).collect())
}

fn beginning(begun: &[Claim]) -> Arc<Group> {
    Arc::new(Group { now: NOW, begun: begun.to_vec(), ..Group::default() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_set_aside_when_the_process_that_was_sending_it_is_dead() {
    let schema = Schema::new();
    let (dead, alive, claims) = holding(&schema, schema.url(), Some(7)).await;
    assert_eq!(alive.commit(beginning(&claims)).await.unwrap().unsealed, claims, "it is another's");
    assert_eq!(dead.commit(beginning(&claims)).await.unwrap().unsealed, []);
    expire(&schema, dead.incarnation()).await;
    let taken = alive.take_over(dead.incarnation(), NOW).await.unwrap();
    assert_eq!((taken.due, taken.set_aside), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_due_when_the_process_that_held_it_is_dead() {
    let schema = Schema::new();
    let (dead, alive, _) = holding(&schema, schema.url(), None).await;
    expire(&schema, dead.incarnation()).await;
    let taken = alive.take_over(dead.incarnation(), NOW).await.unwrap();
    assert_eq!((taken.due, taken.set_aside), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_is_due_when_its_process_leaves_in_good_order() {
    let schema = Schema::new();
    let (leaving, alive, claims) = holding(&schema, schema.url(), None).await;
    assert_eq!(leaving.commit(beginning(&claims)).await.unwrap().unsealed, []);
    leaving.leave(NOW).await.unwrap();
    assert_eq!(alive.due().await.unwrap().len(), 1);
    let lost = "SELECT lost FROM deliveries";
    let lost: i32 = connect(&schema).await.client.query_one(lost, &[]).await.unwrap().get(0);
    assert_eq!(lost, CLAIMS_LOST_MAX.cast_signed(), "it is a suspect as before");
}

/// The caller cannot know whether it was written, and does not send it.
#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_whose_answer_is_lost_is_none() {
    let schema = Schema::new();
    let proxy = Proxy::to(schema.url()).await;
    let (holder, alive, claims) = holding(&schema, &proxy.url(), None).await;
    proxy.cut_at_next_commit(true);
    assert_eq!(holder.commit(beginning(&claims)).await.unwrap().unsealed, claims);
    assert!(proxy.has_cut(), "the answer was lost");
    let released = Group { now: NOW, released: claims, ..Group::default() };
    holder.commit(Arc::new(released)).await.unwrap();
    assert_eq!(alive.due().await.unwrap().len(), 1);
}
