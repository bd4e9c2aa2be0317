// Watching runs: the log of a run's events, and the local page that shows it.
export { EventLog } from './event-log.js';
export {
  eventsFile,
  type NoticeLevel,
  type RowEvent,
  type RunEvent,
  type TrackName,
  type Untimed,
} from './events.js';
export { ServedPage } from './served-page.js';
export { WatchServer, type WatchServerOptions } from './server.js';
