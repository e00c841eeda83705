//! Signals: how a user or the system asks a process to end.

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
