//! Bad neighbours: what the good receivers feel while others hang, drip, reset or never end.
//!
//! A hundred receivers get every event. Half of them are always good and are watched. The others are good too, or one
//! of them is bad, or all of them: these phases alternate in one run, several times, so that a busy machine is busy
//! for all of them alike. The watched ones' 99th percentile is compared within each round, and the median of the rounds
//! decides. Few events per second: this is about standing in somebody's way, not about throughput.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::checker::api::Asked;
use super::crowd::{BAD, Crowd, Member, Mood};
use super::scene::{self, Build};
use crate::clock::{self, Stopwatch};
use crate::server::{PROJECT, Scratch, Server};

const CROWD: usize = 100;
/// Those that are always good, and watched.
const WATCHED: usize = 50;
/// Bad ones get a head start, so that they occupy whatever they can.
const HEAD_START: Duration = Duration::from_secs(1);
/// How much slower the watched ones may be with one bad neighbour, and with fifty.
const FACTOR_ONE_MAX: f64 = 1.5;
const FACTOR_MANY_MAX: f64 = 3.0;
/// Differences below this are the machine's, not the neighbours'.
const NOISE: Duration = Duration::from_millis(10);
/// The watched ones get everything within this, whatever the others do.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(30);

/// How long and how hard.
#[derive(Args)]
pub(crate) struct Neighbours {
    /// How many times the phases alternate
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each phase is measured
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Events per second, each to a hundred receivers
    #[arg(long, default_value_t = 4)]
    rate: u32,
    /// Decides which neighbour is the one bad one
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    build: Build,
}

/// The watched ones' 99th percentile in each phase of one round.
struct Round {
    /// Without bad neighbours: before either of the bad phases.
    none: [Duration; 2],
    one: Duration,
    many: Duration,
}

impl Round {
    /// How many times as long it took as in the same round without bad neighbours.
    fn factor(&self, p99: Duration) -> f64 {
        let baseline = (self.none[0] + self.none[1]) / 2;
        p99.saturating_sub(NOISE).as_secs_f64() / baseline.as_secs_f64()
    }
}

/// Runs the campaign and prints its report.
pub(crate) fn run(args: &Neighbours) -> Result<()> {
    let binary = args.build.binary()?;
    let mut scratch = Scratch::new("neighbours")?;
    let mut server = Server::start(&binary, scratch.path())?;
    let outcome = campaign(args, &mut server);
    if outcome.is_err() {
        eprintln!("the server's log ends:\n{}", server.log_tail());
        scratch.keep();
    }
    outcome
}

fn campaign(args: &Neighbours, server: &mut Server) -> Result<()> {
    let mut prng = scene::seeded(args.seed);
    let runtime: Runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (crowd, members) = runtime.block_on(Crowd::start(CROWD))?;
    let watched = members[..WATCHED].iter().enumerate();
    let watched: Vec<String> =
        watched.map(|(index, member)| subscribe(server, index, member)).collect::<Result<_>>()?;
    let stage = Stage { args, server, crowd, members };
    let everybody: Vec<usize> = (WATCHED..CROWD).collect();
    let mut rounds = Vec::new();
    stage.phase(&[])?;
    for _ in 0..args.rounds {
        let unlucky = WATCHED + usize::try_from(prng.below((CROWD - WATCHED) as u64))?;
        let before_one = stage.phase(&[])?;
        let one = stage.phase(&[unlucky])?;
        let before_many = stage.phase(&[])?;
        let many = stage.phase(&everybody)?;
        rounds.push(Round { none: [before_one, before_many], one, many });
    }
    let asked = Asked { server, project: PROJECT, subscribers: &watched };
    stage.crowd.check(&asked, WATCHED)?;
    server.kill()?;
    report(&rounds)
}

fn subscribe(server: &Server, index: usize, member: &Member) -> Result<String> {
    let url = format!("http://{}/", member.address);
    // The breaker would send the bad ones away after a few failures: here they shall stay and do their worst.
    let rest = json!({"retry": {"schedule": vec!["1s"; 5]}, "breaker": "off"});
    Ok(server.subscribe(&format!("member {index}"), &url, &rest)?.id)
}

struct Stage<'a> {
    args: &'a Neighbours,
    server: &'a Server,
    crowd: Crowd,
    members: Vec<Member>,
}

impl Stage<'_> {
    /// Measures with these neighbours bad; answers the 99th percentile of the watched ones.
    fn phase(&self, bad: &[usize]) -> Result<Duration> {
        for (turn, index) in bad.iter().enumerate() {
            self.members[*index].be(BAD[turn % BAD.len()]);
        }
        // Neighbours are new in every phase and leave with what was undelivered, so that phases do not mix.
        let neighbours = (WATCHED..CROWD)
            .map(|index| subscribe(self.server, index, &self.members[index]))
            .collect::<Result<Vec<String>>>()?;
        self.send(HEAD_START)?;
        let first = self.send(Duration::from_secs(self.args.seconds))?;
        let p99 = self.watched(first)?;
        for id in neighbours {
            self.server.api("DELETE", &format!("/v1/subscribers/{id}"), &Value::Null)?;
        }
        self.members.iter().for_each(|member| member.be(Mood::Good));
        Ok(p99)
    }

    /// Sends events at the pace for a while; answers the number of the first.
    fn send(&self, span: Duration) -> Result<usize> {
        let watch = Stopwatch::start();
        let mut first = None;
        let mut sent = 0;
        while watch.elapsed() < span {
            first.get_or_insert(self.crowd.sent());
            self.server.api("POST", "/v1/events", &self.crowd.event())?;
            sent += 1;
            let next = Duration::from_secs(1) * sent / self.args.rate.max(1);
            clock::pause(next.saturating_sub(watch.elapsed()));
        }
        first.context("nothing was sent")
    }

    /// Waits until all events from `first` on have come to all watched ones.
    fn watched(&self, first: usize) -> Result<Duration> {
        let expected = (self.crowd.sent() - first) * WATCHED;
        let complete =
            clock::wait_until(ARRIVAL_PATIENCE, || self.crowd.times(first, WATCHED).len() >= expected);
        let mut times = self.crowd.times(first, WATCHED);
        ensure!(complete, "only {} of {expected} deliveries came to the watched ones", times.len());
        times.sort();
        Ok(times[times.len() * 99 / 100])
    }
}

fn report(rounds: &[Round]) -> Result<()> {
    ensure!(!rounds.is_empty(), "nothing was measured");
    for Round { none: [before_one, before_many], one, many } in rounds {
        println!(
            "p99                 {} without, {} with 1 bad; {} without, {} with 50 bad",
            ms(*before_one),
            ms(*one),
            ms(*before_many),
            ms(*many)
        );
    }
    let one = median(rounds.iter().map(|round| round.factor(round.one)));
    let many = median(rounds.iter().map(|round| round.factor(round.many)));
    println!(
        "1 bad of {CROWD}        {one:.2} times as long, the median of the rounds (at most {FACTOR_ONE_MAX})"
    );
    println!(
        "50 bad of {CROWD}       {many:.2} times as long, the median of the rounds (at most {FACTOR_MANY_MAX})"
    );
    if one > FACTOR_ONE_MAX || many > FACTOR_MANY_MAX {
        bail!("bad neighbours slow down the good ones more than promised");
    }
    println!("every promise was kept");
    Ok(())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn ms(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Round, report};

    /// Rounds written as milliseconds without, with one and with fifty bad neighbours.
    fn check(rounds: &[[u64; 3]], is_kept: bool) {
        let told: Vec<Round> = rounds
            .iter()
            .map(|round| round.map(Duration::from_millis))
            .map(|[none, one, many]| Round { none: [none, none], one, many })
            .collect();
        assert_eq!(report(&told).is_ok(), is_kept, "{rounds:?}");
    }

    #[test]
    fn a_round_is_compared_with_itself_and_the_median_decides() {
        check(&[[100, 150, 300], [1_000, 1_500, 3_000], [100, 900, 900]], true);
        check(&[[100, 165, 100], [100, 165, 100], [100, 100, 100]], false);
        check(&[[100, 100, 315], [100, 100, 315], [100, 100, 100]], false);
    }

    #[test]
    fn what_the_machine_alone_may_do_is_not_blamed_on_neighbours() {
        check(&[[1, 11, 12]], true);
        check(&[[1, 12, 12]], false);
        check(&[], false);
    }
}
