//! Signals: how a user or the system asks a process to end.

/// Done when the process is asked to end: Ctrl-C, or where there are such a termination signal or a terminal that is closed.
#[cfg(unix)]
pub(super) async fn stop_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    // Without a handler the system's own stops the process.
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

/// Done when the process is asked to end.
#[cfg(not(unix))]
pub(super) async fn stop_requested() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
