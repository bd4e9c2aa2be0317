// Finds circles in a graph of imports: groups of files that import each other, also indirectly.

/**
 * The circles of `graph`, a Map from a file to its imports. A circle is a list of files: it starts
 * at a file, follows imports and returns to the file. Returns one circle per strongly connected
 * component. Source: Tarjan 1972.
 */
export function circlesOf(graph) {
  const number = new Map();
  const lowest = new Map();
  const open = [];
  const groups = [];
  const visit = (file) => {
    number.set(file, number.size);
    lowest.set(file, number.get(file));
    open.push(file);
    for (const next of graph.get(file) ?? []) {
      if (!number.has(next)) visit(next);
      if (open.includes(next)) lowest.set(file, Math.min(lowest.get(file), lowest.get(next)));
    }
    if (lowest.get(file) !== number.get(file)) return;
    const group = open.splice(open.indexOf(file));
    if (group.length > 1 || graph.get(file)?.includes(file)) groups.push(group);
  };
  for (const file of graph.keys()) if (!number.has(file)) visit(file);
  return groups.map((group) => shortest(graph, group));
}

/** The shortest way from the first file of `group` through it and back. */
function shortest(graph, group) {
  const [start] = group;
  const ways = [[start]];
  const seen = new Set();
  for (const way of ways) {
    for (const next of graph.get(way.at(-1)) ?? []) {
      if (next === start) return [...way, start];
      if (!group.includes(next) || seen.has(next)) continue;
      seen.add(next);
      ways.push([...way, next]);
    }
  }
  return group;
}
