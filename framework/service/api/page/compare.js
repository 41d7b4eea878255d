'use strict';
// Jobs side by side: their curves in one chart, their numbers, and what differs in their configurations.
const chosen = new Set();  // ids
const mostCompared = 8;
let compared = [];  // jobs with the points of the metric

function choose(id, isChosen) {
  if (isChosen && chosen.size < mostCompared) chosen.add(id);
  else chosen.delete(id);
  at('compare').disabled = chosen.size < 2;
}

const labelOf = (job) => 'job ' + job.id + (job.name ? ': ' + job.name : '');

function drawComparison() {
  const all = compared.flatMap((each) => each.points);
  const chart = at('compared-chart');
  if (all.length === 0) {
    chart.replaceChildren();
    at('compared-range').textContent = 'no values yet';
    at('compared-steps').textContent = '';
    return;
  }
  const range = rangeOf(all);
  chart.replaceChildren(...compared.filter((each) => each.points.length > 0).map((each) =>
    drawing('path', {class: 'of-' + compared.indexOf(each), d: curveOf(each.points, range).line})));
  at('compared-range').textContent = numberText(range.low) + ' to ' + numberText(range.high);
  at('compared-steps').textContent = 'steps ' + range.from + ' to ' + range.to;
  chart.setAttribute('aria-label', at('compared-metric').value + ' of ' + compared.map(({job, points}) => labelOf(job) +
    (points.length === 0 ? ', no values' : ', now ' + curveOf(points).value)).join('; '));
}

const drawComparisonSoon = onceAFrame(drawComparison);

async function pointsOf(job, metric) {
  try {
    return (await ask('/v1/jobs/' + job.id + '/history?points=512&metric=' + encodeURIComponent(metric))).points;
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}

async function loadCurves() {
  const metric = at('compared-metric').value;
  at('compared-name').textContent = metric;
  await Promise.all(compared.map(async (each) => { each.points = await pointsOf(each.job, metric); }));
  drawComparison();
}

function fill(table, jobs, rows, cellText, empty) {
  const head = element('tr'), top = element('thead'), body = element('tbody');
  head.append(element('th', '', {scope: 'col'}), ...jobs.map((job) => element('th', labelOf(job), {scope: 'col'})));
  top.append(head);
  for (const [name, values] of rows) {
    const row = element('tr');
    row.append(element('th', name, {scope: 'row'}), ...values.map((value) => element('td', cellText(value))));
    body.append(row);
  }
  if (rows.length === 0) body.append(element('tr', empty));
  table.replaceChildren(top, body);
}

async function compareJobs() {
  const answer = await ask('/v1/comparison?jobs=' + [...chosen].sort((a, b) => a - b).join(','));
  const select = at('compared-metric'), before = select.value || 'loss';
  const names = answer.figures.filter((row) => !/ |^step$/.test(row.name)).map((row) => row.name);
  select.replaceChildren(...(names.length === 0 ? ['loss'] : names).map((name) => element('option', name)));
  if (names.includes(before)) select.value = before;
  else if (names.includes('loss')) select.value = 'loss';
  compared = answer.jobs.map((job) => ({job, points: []}));
  at('legend').replaceChildren(...answer.jobs.map((job, i) => {
    const item = element('li');
    const mark = drawing('svg', {viewBox: '0 0 40 10', 'aria-hidden': 'true'});
    mark.append(drawing('path', {class: 'of-' + i, d: 'M0 5h40'}));
    item.append(mark, element('span', labelOf(job) + ', ' + job.state));
    return item;
  }));
  fill(at('figures'), answer.jobs, answer.figures.map((row) => [row.name, row.values]),
       (value) => value === null ? '' : numberText(value), 'no numbers yet');
  fill(at('differences'), answer.jobs, answer.configuration.map((row) => [row.key, row.values]),
       (value) => value === null ? 'not given' : value, 'their configurations are the same');
  at('comparison').hidden = false;
  await loadCurves();
}

// The newest numbers of a run that is compared.
function addToComparison(data) {
  const each = compared.find(({job}) => job.id === data.job), value = data[at('compared-metric').value];
  if (!each || value === undefined || at('comparison').hidden) return;
  each.points.push([data.step, value, value]);
  if (each.points.length > 2048) loadCurves();
  else drawComparisonSoon();
}

const sayTrouble = (error) => { at('state').textContent = error.message; };
at('compare').addEventListener('click',
  () => compareJobs().then(() => at('comparison-title').focus()).catch(sayTrouble));
at('compared-metric').addEventListener('change', () => loadCurves().catch(sayTrouble));
at('end-comparison').addEventListener('click', () => { at('comparison').hidden = true; compared = []; });
