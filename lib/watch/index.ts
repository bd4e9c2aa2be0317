// Exports of lib/watch: the log of a run's events, and the local page that shows it.
export { EventLog } from './event-log.js';
export { NOTICE_LEVELS, type NoticeLevel } from './events.js';
export { ServedPage } from './served-page.js';
export { WatchServer } from './server.js';
