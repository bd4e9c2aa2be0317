// A dataset in an ES module, which no require() of any Node takes: it awaits at its top.
const offset = await Promise.resolve(100);

/** @param {number} length */
export default async (length) => ({
  length,
  /** @param {number} index */
  get: (index) => offset + index,
});
