//! A place where news wait until they are read, as one.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::News;

/// For any number of writers and one reader.
#[derive(Default)]
pub(super) struct Mailbox {
    news: Mutex<News>,
    bell: Notify,
}

impl Mailbox {
    /// Adds to what waits.
    pub(super) fn put(&self, news: News) {
        if news.is_empty() {
            return;
        }
        self.news.lock().unwrap_or_else(PoisonError::into_inner).merge(news);
        self.bell.notify_one();
    }

    /// What waits; empty if nothing does.
    pub(super) fn take(&self) -> News {
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What waits, as soon as something does. Nothing is lost if the caller gives up waiting.
    pub(super) async fn wait(&self) -> News {
        loop {
            let news = self.take();
            if !news.is_empty() {
                return news;
            }
            self.bell.notified().await;
        }
    }
}
