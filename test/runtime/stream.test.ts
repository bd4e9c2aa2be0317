// Tests streams and events after dispose().
import { cpu } from '../../lib/runtime/device.js';
import { Event, Stream } from '../../lib/runtime/stream.js';

test('a second dispose() of a stream or an event does nothing', () => {
  const stream = Stream.create(cpu());
  const event = new Event(cpu()).record(stream);
  for (const one of [stream, event]) {
    one.dispose();
    expect(() => one.dispose()).not.toThrow();
  }
  const other = Stream.create(cpu());
  stream.dispose();
  expect(Stream.of(other.handle)).toBe(other);
  for (const late of [() => stream.synchronize(), () => event.done]) {
    expect(late).toThrow(expect.objectContaining({ code: 'DS_RELEASED' }));
  }
  other.dispose();
});
