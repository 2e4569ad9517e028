//! What a process asks of its parent and the kernel.

use std::io;

/// Ends this process with SIGKILL when the process `parent` ends, however it ends. Call it first
/// thing in a child: if the parent is gone already, the answer is `NotFound`.
///
/// The kernel binds the signal to the *thread* that started this process; a parent starts its
/// children from its main thread.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Asked after the signal was armed: a parent that died in between is seen here.
    let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    if now == Some(parent) {
        Ok(())
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Asks the process `pid` to stop (SIGTERM). `NotFound` if there is none.
pub fn terminate(pid: u32) -> io::Result<()> {
    signal(pid, rustix::process::Signal::TERM)
}

/// Ends the process `pid` (SIGKILL). `NotFound` if there is none.
pub fn kill(pid: u32) -> io::Result<()> {
    signal(pid, rustix::process::Signal::KILL)
}

/// Whether there is a process `pid`.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    rustix::process::Pid::from_raw(pid.cast_signed())
        .is_some_and(|pid| rustix::process::test_kill_process(pid).is_ok())
}

/// Whether there is a process `pid` that runs, or waits for something; not one that was stopped
/// (SIGSTOP, a debugger) or has ended and was not reaped.
#[must_use]
pub fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state comes behind the name, which is in parentheses and can hold any character.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'T' | 't' | 'Z' | 'X' | 'x'))
}

/// Stops the process `pid` until it is told to go on (SIGSTOP). `NotFound` if there is none.
pub fn pause(pid: u32) -> io::Result<()> {
    signal(pid, rustix::process::Signal::STOP)
}

/// Lets the stopped process `pid` go on (SIGCONT). `NotFound` if there is none.
pub fn resume(pid: u32) -> io::Result<()> {
    signal(pid, rustix::process::Signal::CONT)
}

fn signal(pid: u32, signal: rustix::process::Signal) -> io::Result<()> {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    rustix::process::kill_process(pid, signal).map_err(|errno| match errno {
        rustix::io::Errno::SRCH => io::ErrorKind::NotFound.into(),
        other => other.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_lives_and_does_not_run() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a child");
        let pid = child.id();
        let comes_to = |runs: bool| {
            // The signal was sent; the kernel acts on it soon.
            for _ in 0..10_000 {
                if is_running(pid) == runs {
                    return true;
                }
                std::thread::yield_now();
            }
            false
        };
        let ran = comes_to(true);
        let stopped = pause(pid).is_ok() && comes_to(false) && is_alive(pid);
        let resumed = resume(pid).is_ok() && comes_to(true);
        let killed = child.kill().is_ok() && child.wait().is_ok();
        assert!(ran && stopped && resumed && killed);
        assert!(!is_running(pid));
    }
}
