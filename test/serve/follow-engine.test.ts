// Ranks that follow the server's rank.
import { initInference, initServing } from '../../lib/inference/init-inference.js';
import { followEngine } from '../../lib/serve/index.js';

jest.mock('../../lib/inference/init-inference.js', () => {
  const engine = { follow: async () => {}, destroy: async () => {} };
  const actual = jest.requireActual('../../lib/inference/init-inference.js');
  return {
    ...actual,
    initInference: jest.fn(actual.initInference),
    initServing: jest.fn(async () => engine),
  };
});

// The ranks take the smallest cache of all.
test('a following rank sizes its cache as the rank of the server', async () => {
  await followEngine('folder', { config: { device: 'cpu' } });
  expect(initServing).toHaveBeenCalledWith('folder', { device: 'cpu' }, {});
  expect(initInference).not.toHaveBeenCalled();
});
