//! Signals: how a user or the system asks a process to end.

use std::time::Duration;

/// From now on, a write beyond the limit of file sizes (`ulimit -f`) fails with an error, which is reported where it happens. By default
/// the signal that comes with it ends the process.
#[cfg(unix)]
pub(super) fn outlive_file_size_limit() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let _inside = runtime.enter();
    // The handler stays for as long as the process.
    drop(signal(SignalKind::from_raw(libc::SIGXFSZ)));
}

/// Other systems have no such signal.
#[cfg(not(unix))]
pub(super) fn outlive_file_size_limit() {}

/// Completes when the process is asked to end: by Ctrl-C, a termination signal, or a closed terminal.
#[cfg(unix)]
pub(super) async fn stop_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    // Without these handlers, the default ones stop the process.
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupted), Ok(mut terminated), Ok(mut hung_up)] = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
        _ = hung_up.recv() => {}
    }
}

/// Completes when the process is asked to end by Ctrl-C.
#[cfg(not(unix))]
pub(super) async fn stop_requested() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// As [`stop_requested`], after it has completed once. Some tools signal a process and then its group: that is one request.
pub(super) async fn stop_requested_again() {
    tokio::time::sleep(SAME_REQUEST).await;
    stop_requested().await;
}

/// A second signal within this time is the same request as the first.
const SAME_REQUEST: Duration = Duration::from_millis(300);
