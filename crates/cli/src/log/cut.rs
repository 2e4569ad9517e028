//! `ostraca log cut`: going on without what is damaged.
//!
//! Nothing here changes a file of the log. In order: the shard's lock; a plan, which the person must
//! have accepted; the epoch, raised; the plan again, which nobody can change any more; copies of
//! what is given up; and the take-over that names the end. Before that last step nothing is lost.

use std::fmt;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use ostraca_io::files::{self, Lock, LockHolder, LockRole};
use ostraca_io::{Disk as _, DiskFile as _, Entropy as _, PAGE_SIZE, Page, RealPage};
use ostraca_types::Sequence;
use ostraca_wal::{
    Claim, CutPlan, EPOCH_PAGE, Error, Options, Owner, plan_cut, read_epoch_page, verify,
};

use crate::args::CutArgs;
use crate::exit::{Exit, Failure, written};
use crate::machine;

use super::copies::{CopyError, set_aside};
use super::page::EpochPage;
use super::{Damage, OpenLog, ShardDir, quoted, shard_dirs};

/// Names that a page of the wrong size is given before it counts as odd that all are taken.
const PAGES_ASIDE_MAX: u32 = 100;

pub(super) fn run(args: &CutArgs) -> Result<(), Failure> {
    let dir = one_shard(&args.path)?;
    match args.accept_loss_after {
        None => show(&dir),
        Some(accepted) => cut(&dir, Sequence(accepted), !args.no_copies),
    }
}

/// A cut is one decision about one log.
fn one_shard(path: &Path) -> Result<ShardDir, Failure> {
    let mut dirs = shard_dirs(path)?;
    match (dirs.pop(), dirs.len()) {
        (Some(dir), 0) => Ok(dir),
        (_, others) => Err(Failure::new(
            Exit::Usage,
            format!(
                "a cut is made in one shard, and this directory has {}; name one: ostraca log cut {}",
                others + 1,
                quoted(&path.join("shard-0"))
            ),
        )),
    }
}

/// What has to be done, so that the shard can be opened.
enum Needed {
    Nothing,
    /// The log is whole, up to there. Only its page is lost.
    Page(Sequence),
    Cut(Box<CutPlan>),
}

impl Needed {
    /// Changes nothing.
    fn of(dir: &ShardDir, log: &OpenLog) -> Result<Self, Failure> {
        if let Some(trouble) = log.page.trouble(dir).filter(|_| !log.page.is_lost()) {
            // Another store's page, or none that can be read: to be put right, and not made anew.
            return Err(trouble);
        }
        let (disk, identity) = (&log.disk, log.identity);
        let plan = plan_cut(disk, identity, log.page.durable()).map_err(|err| dir.failure(&err))?;
        if let Some(plan) = plan {
            return Ok(Self::Cut(Box::new(plan)));
        }
        if log.page.is_lost() {
            let report = verify(disk, identity, None, &mut |_| {});
            let report = report.map_err(|err| dir.failure(&err))?;
            return Ok(Self::Page(report.last_sequence));
        }
        Ok(Self::Nothing)
    }

    fn keeps(&self) -> Option<Sequence> {
        match self {
            Self::Nothing => None,
            Self::Page(last) => Some(*last),
            Self::Cut(plan) => Some(plan.keeps),
        }
    }
}

/// What a cut would do, and the command that does it.
fn show(dir: &ShardDir) -> Result<(), Failure> {
    let log = dir.open()?;
    let needed = Needed::of(dir, &log)?;
    let (keeps, shown, what) = match &needed {
        Needed::Nothing => return print(&nothing_to_cut(dir)),
        Needed::Page(keeps) => (
            *keeps,
            page_only(dir, &log, *keeps),
            "the epoch page is lost, and is not made anew yet",
        ),
        Needed::Cut(plan) => (
            plan.keeps,
            Plan {
                dir,
                log: &log,
                plan,
            }
            .to_string(),
            "the log is damaged, and is not cut yet",
        ),
    };
    print(&format!(
        "{shown}\nTo do so, with no process on the shard:\n  ostraca log cut {} --accept-loss-after \
         {keeps}\n",
        quoted(&dir.path)
    ))?;
    let message = format!("{}: {what}", dir.path.display());
    Err(Failure::new(Exit::Damaged, message))
}

fn cut(dir: &ShardDir, accepted: Sequence, copies: bool) -> Result<(), Failure> {
    let _lock = lock(dir)?;
    refuse_beside_others(dir)?;
    let log = dir.open()?;
    let Some(keeps) = Needed::of(dir, &log)?.keeps() else {
        return print(&nothing_to_cut(dir));
    };
    check_accepted(dir, accepted, keeps)?;
    let page_lost = log.page.is_lost();
    if page_lost {
        make_page(dir, &log.page)?;
    }
    let page = open_page(dir)?;
    let (disk, identity, entropy) = (&log.disk, log.identity, machine::entropy());
    let not_cut = |err| failure(dir, "nothing is cut", &err);
    let claim = Claim::raise(Arc::clone(&page), identity, disk, &*entropy).map_err(not_cut)?;
    // Once more, now that nobody can change it.
    let durable = read_epoch_page(page, &identity).map_err(not_cut)?.durable;
    let plan = claim.or_fenced(plan_cut(disk, identity, durable));
    let Some(plan) = plan.map_err(not_cut)? else {
        return print(&if page_lost {
            format!(
                "shard-{}: the epoch page is made anew, and the log is whole, up to record {keeps}. \
                 The shard can be started.\n",
                dir.shard
            )
        } else {
            nothing_to_cut(dir)
        });
    };
    check_accepted(dir, accepted, plan.keeps)?;
    let aside = dir.path.join(format!("cut-{:016x}", claim.epoch().0));
    let copies = if !copies {
        "No copies were made.".to_owned()
    } else if plan.files.is_empty() {
        "No file had anything behind the cut.".to_owned()
    } else {
        set_aside(disk, &aside, &plan.files).map_err(|err| not_copied(dir, &aside, &err))?;
        format!("Copies of what it cuts off are in {}.", aside.display())
    };
    let done = format!(
        "shard-{}: cut. Kept: {}; {}. {copies}\nThe shard can be started. Clients may hold \
         acknowledgements of what was lost: such a paste is not found, a\nretry of its create makes \
         another one, and what had ended may be there again.\n",
        dir.shard,
        Kept(plan.keeps),
        Lost(&plan)
    );
    let mut owner = [0; 16];
    entropy.fill(&mut owner);
    let unfinished = |err| {
        let doing = format!("the cut is not finished, make it again. {copies} Why");
        failure(dir, &doing, &err)
    };
    plan.carry_out(disk.clone(), claim, Owner(owner), Options::default())
        .map_err(unfinished)?;
    print(&done)
}

/// Mapped, to be changed.
fn open_page(dir: &ShardDir) -> Result<Arc<dyn Page>, Failure> {
    let path = dir.path.join(EPOCH_PAGE);
    let page = RealPage::open(&path).map_err(|err| {
        Failure::doing(
            Exit::Failed,
            format_args!("cannot use {}", path.display()),
            &err,
        )
    })?;
    Ok(Arc::new(page))
}

fn print(text: &str) -> Result<(), Failure> {
    written(io::stdout().lock().write_all(text.as_bytes()))
}

fn nothing_to_cut(dir: &ShardDir) -> String {
    format!("shard-{}: not damaged, nothing to cut\n", dir.shard)
}

/// Keeps out whoever serves the shard, from before the plan to the end. A standby waits for it.
fn lock(dir: &ShardDir) -> Result<Lock, Failure> {
    let path = dir.path.join("lock");
    match Lock::acquire_as(LockRole::Tool, &path) {
        Ok(taken) => taken.map_err(|holder| held(dir, holder)),
        Err(err) => Err(Failure::doing(
            Exit::Failed,
            format_args!("cannot lock {}", path.display()),
            &err,
        )),
    }
}

fn held(dir: &ShardDir, holder: LockHolder) -> Failure {
    let pid = holder.pid;
    let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    let path = dir.path.display();
    let message = match holder.role {
        LockRole::Leader => {
            format!("{path}: another process is on this shard, end it first: pid {pid}")
        }
        LockRole::Tool => {
            format!("{path}: another command is at work on this shard, wait for it: pid {pid}")
        }
    };
    Failure::new(Exit::Conflict, message)
}

/// Who serves the shard by `--take-over` does not hold the lock, but has the log open. It would be
/// fenced, unless the page that it looks at is not the one that is there now.
fn refuse_beside_others(dir: &ShardDir) -> Result<(), Failure> {
    let log = dir.path.join("log");
    let log = log.canonicalize().map_err(|err| {
        Failure::doing(
            Exit::Failed,
            format_args!("cannot open {}", log.display()),
            &err,
        )
    })?;
    other_on(&log).map_or(Ok(()), |pid| {
        let holder = LockHolder {
            pid: Some(pid),
            role: LockRole::Leader,
        };
        Err(held(dir, holder))
    })
}

/// Another process that has `log` or a file in it open, as far as this one may know.
fn other_on(log: &Path) -> Option<u32> {
    let processes = files::list(Path::new("/proc")).unwrap_or_default();
    let mut pids = processes.iter().filter_map(|name| name.parse().ok());
    pids.find(|&pid: &u32| {
        let open = Path::new("/proc").join(pid.to_string()).join("fd");
        let names = files::list(&open).unwrap_or_default();
        let mut targets = names.iter().filter_map(|fd| open.join(fd).read_link().ok());
        pid != std::process::id() && targets.any(|target| target.starts_with(log))
    })
}

fn check_accepted(dir: &ShardDir, accepted: Sequence, keeps: Sequence) -> Result<(), Failure> {
    if accepted == keeps {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Usage,
        format!(
            "{}: nothing is cut: the last record that can be kept is {keeps}, and --accept-loss-after \
             says {accepted}",
            dir.path.display()
        ),
    ))
}

/// Makes the page anew: zeros, which the claim makes good, far above all epochs in use. Nothing but
/// this may do so, since a process that has the old page mapped would not be fenced: it is sure here
/// that none has.
fn make_page(dir: &ShardDir, lost: &EpochPage) -> Result<(), Failure> {
    let path = dir.path.join(EPOCH_PAGE);
    let failed = |err: io::Error| {
        Failure::doing(
            Exit::Failed,
            format_args!("cannot make {} anew; nothing is cut", path.display()),
            &err,
        )
    };
    if !matches!(lost, EpochPage::Missing) {
        let mut number = 0;
        loop {
            number += 1;
            let aside = dir.path.join(format!("{EPOCH_PAGE}-damaged-{number}"));
            match files::rename_durable(&path, &aside) {
                Err(err)
                    if err.kind() == io::ErrorKind::AlreadyExists && number < PAGES_ASIDE_MAX => {}
                moved => break moved.map_err(failed)?,
            }
        }
    }
    files::create_durable(&path, &[0; PAGE_SIZE], 0o600).map_err(failed)
}

/// A failure from the raise on, and how far the cut has come. No file of the log was changed.
fn failure(dir: &ShardDir, state: &str, err: &Error) -> Failure {
    let exit = match err {
        Error::Full => Exit::Unavailable,
        Error::Fenced { .. } => Exit::Conflict,
        err => dir.failure(err).exit,
    };
    Failure::doing(exit, format_args!("{}: {state}", dir.path.display()), err)
}

fn not_copied(dir: &ShardDir, aside: &Path, err: &CopyError) -> Failure {
    let (path, to) = (dir.path.display(), aside.display());
    match err {
        CopyError::Full => Failure::new(
            Exit::Unavailable,
            format!(
                "{path}: nothing is cut: no room for the copies in {to}; free disk space, or copy the \
                 shard's directory elsewhere and add --no-copies"
            ),
        ),
        CopyError::Read(file, offset, err) => Failure::doing(
            Exit::Failed,
            format_args!(
                "{path}: nothing is cut: cannot read {file} from offset {offset} on, to copy it; with \
                 --no-copies it is cut all the same"
            ),
            err,
        ),
        CopyError::Write(err) => Failure::doing(
            Exit::Failed,
            format_args!("{path}: nothing is cut: cannot write the copies in {to}"),
            err,
        ),
    }
}

struct Kept(Sequence);

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Sequence(0) => f.write_str("no record"),
            last => write!(f, "every record up to {last}"),
        }
    }
}

/// How much is lost, as a part of a sentence.
struct Lost<'a>(&'a CutPlan);

impl fmt::Display for Lost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (keeps, known) = (self.0.keeps.0, self.0.known.0);
        match known.saturating_sub(keeps) {
            0 => f.write_str("of later ones none is known, and there may have been some"),
            1 => write!(f, "record {known} is lost, and any later one"),
            lost => write!(
                f,
                "at least {lost} are lost, {} to {known}, and any later one",
                keeps + 1
            ),
        }
    }
}

/// What a cut does, for a person to decide.
struct Plan<'a> {
    dir: &'a ShardDir,
    log: &'a OpenLog,
    plan: &'a CutPlan,
}

impl fmt::Display for Plan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dir, plan) = (self.dir, self.plan);
        writeln!(f, "shard-{}: damaged", dir.shard)?;
        writeln!(f, "  damage       {}", Damage(&plan.damage))?;
        if self.log.page.is_lost() {
            writeln!(f, "  epoch page   {}; a cut makes it anew", self.log.page)?;
        } else {
            writeln!(f, "  epoch page   {}", self.log.page)?;
        }
        writeln!(f, "  kept         {}", Kept(plan.keeps))?;
        writeln!(f, "  known of     records up to {}", plan.known)?;
        writeln!(f, "  lost         {}", Lost(plan))?;
        for name in &plan.files {
            let size = self.log.disk.open_read_only(name);
            match size.and_then(|file| file.size()) {
                Ok(bytes) => writeln!(f, "  set aside    {name}, {bytes} bytes")?,
                Err(_) => writeln!(f, "  set aside    {name}")?,
            }
        }
        writeln!(
            f,
            "\nA copy of the shard's directory may have what is lost here: then restore it. Else a cut goes \
             on without\nthat, for good. What is to be set aside it first copies to {}.",
            dir.path.join("cut-EPOCH").display()
        )
    }
}

/// What making the page anew does.
fn page_only(dir: &ShardDir, log: &OpenLog, keeps: Sequence) -> String {
    format!(
        "shard-{}: {}. The log is whole, up to record {keeps}: making the\npage anew loses none of these. \
         Only the page could tell whether the very last ones are missing.\nAnd it keeps a process out that \
         led the shard and was stopped: make sure that there is none.\n",
        dir.shard, log.page
    )
}
