// Tests that a norm over all heads is not split over ranks that have the same head.
import type { ProcessGroup } from '../../lib/comm/index.js';
import { nn } from '../../lib/index.js';
import { HeadsNorm } from '../../lib/parallel/heads-norm.js';

test('more ranks than key heads are refused, with a fix', () => {
  const group = { size: 4, rank: 0 } as ProcessGroup;
  const twice = [0, 0, 1, 1].map((first) => ({ first, count: 1 }));
  const build = () => new HeadsNorm(new nn.RMSNorm(8), group, [{ pieces: 2, ranges: twice }]);
  expect(build).toThrow(
    expect.objectContaining({
      code: 'DS_ARGUMENT',
      message: expect.stringMatching(
        /norm over all heads: expected at most as many ranks as key.*got 4 ranks.*autotp_size/,
      ),
    }),
  );
});
