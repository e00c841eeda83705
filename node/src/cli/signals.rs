//! Signals: how a user or the system asks a process to end.

/// Done when the process is asked to end: Ctrl-C, or a termination signal where there are such.
#[cfg(unix)]
pub(super) async fn stop_requested() {
    use tokio::signal::unix::{SignalKind, signal};
    // Without a handler the system's own stops the process.
    let (Ok(mut interrupted), Ok(mut terminated)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
}

/// Done when the process is asked to end.
#[cfg(not(unix))]
pub(super) async fn stop_requested() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
