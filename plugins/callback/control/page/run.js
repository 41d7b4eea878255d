'use strict';
// The dashboard of callback/control.
const shown = new Map();  // metric: its figure's parts
const first = ['loss', 'learning_rate', 'scale', 'samples_per_second', 'validation_loss', 'grad_norm'];
let units = new Map();

function bytesText(value) {
  if (value === null) return 'not known';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; value >= 1000 && i < units.length - 1; ++i) value /= 1000;
  return (i === 0 ? value : value.toPrecision(3)) + ' ' + units[i];
}

// A chart: the range of each part as a line up and down.
function addChart(metric) {
  if (shown.has(metric)) return;
  const figure = element('figure'), caption = element('figcaption'), value = element('span');
  caption.append(element('span', metric), value);
  const svg = drawing('svg', {viewBox: '0 0 1000 100', preserveAspectRatio: 'none', role: 'img'});
  const path = drawing('path');
  svg.append(path);
  const feet = element('p'), range = element('span'), steps = element('span');
  feet.append(range, steps);
  figure.append(caption, svg, feet);
  at('charts').append(figure);
  shown.set(metric, {svg, path, value, range, steps, points: [], loading: false,
                     drawSoon: onceAFrame(() => draw(metric))});
}

function draw(metric) {
  const chart = shown.get(metric);
  const points = chart.points;
  if (points.length === 0) return;
  const curve = curveOf(points);
  chart.path.setAttribute('d', curve.line);
  chart.value.textContent = curve.value + (units.get(metric) ? ' ' + units.get(metric) : '');
  chart.range.textContent = curve.range;
  chart.steps.textContent = curve.steps;
  chart.svg.setAttribute('aria-label', metric + ', now ' + chart.value.textContent + ', from ' + curve.range + ' in ' +
                         curve.steps);
}

// One request at a time for each chart.
async function loadHistory(metric) {
  addChart(metric);
  const chart = shown.get(metric);
  if (chart.loading) return;
  chart.loading = true;
  try {
    chart.points = (await ask('/v1/history?points=512&metric=' + encodeURIComponent(metric))).points;
    draw(metric);
  } catch (error) {
    if (error.status !== 404) at('state').textContent = error.message;
  } finally {
    chart.loading = false;
  }
}

function showRun(run) {
  at('name').textContent = run.name;
  document.title = run.name + ' · Vernier';
  at('state').textContent = run.state + (run.learning_rate_factor === 1 ? '' :
                            ', learning rate × ' + numberText(run.learning_rate_factor));
  showStep(run.step, run.steps);
  const isOver = run.state === 'ended' || run.state === 'failed';
  for (const button of document.querySelectorAll('#simple button, #scale button, #interval button, #swap button')) button.disabled = isOver;
}

function showStep(step, steps) {
  const bar = at('bar');
  if (steps !== undefined) bar.max = Math.max(steps, 1);
  bar.value = step;
  at('steps').textContent = 'step ' + step + ' of ' + bar.max;
}

function addNumbers(data) {
  showStep(data.step);
  for (const [metric, value] of Object.entries(data)) {
    const cell = at('metric:' + metric);
    if (cell) cell.textContent = numberText(value);
    const chart = shown.get(metric);
    if (!chart || value === null) continue;
    chart.points.push([data.step, value, value]);
    if (chart.points.length > 2048) loadHistory(metric);
    else chart.drawSoon();
  }
}

function addNotice(notice) {
  const list = at('notice-list');
  if (list.dataset.has !== 'some') list.replaceChildren();
  list.dataset.has = 'some';
  list.prepend(element('li', 'step ' + notice.step + ': ' + notice.text));
  while (list.childElementCount > 200) list.lastChild.remove();
}

function commandText(command) {
  const {command: name, ...rest} = command.command;
  const details = Object.keys(rest).length === 0 ? '' : ' ' + JSON.stringify(rest);
  const became = command.state === 'waiting' ? 'waits for the end of the step' :
    'after step ' + command.step + (command.state === 'refused' ? ', refused' : '') + ': ' + command.answer;
  return name + details + ': ' + became;
}

function showCommand(command) {
  const id = 'command:' + command.id;
  let item = at(id);
  if (!item) {
    item = element('li', '', {id, value: command.id});
    at('history').prepend(item);
  }
  item.textContent = commandText(command);
}

async function command(body) {
  const answer = at('answer');
  answer.className = '';
  answer.textContent = body.command + ' …';
  try {
    const answered = await ask('/v1/commands', 'POST', body);
    showCommand(answered);
    answer.className = answered.state === 'refused' ? 'bad' : '';
    answer.textContent = commandText(answered);
  } catch (error) {
    answer.className = 'bad';
    answer.textContent = body.command + ': ' + error.message;
  }
}

async function showMetrics() {
  const {metrics} = await ask('/v1/metrics');
  const rows = [], more = at('more');
  for (const each of metrics) {
    units.set(each.name, each.unit);
    const row = element('tr');
    row.append(element('td', each.name), element('td', numberText(each.value), {id: 'metric:' + each.name}),
               element('td', each.meaning + (each.unit ? ' (' + each.unit + ')' : '')));
    rows.push(row);
    if (![...more.options].some((option) => option.value === each.name)) {
      more.append(element('option', each.name, {value: each.name}));
    }
  }
  at('metrics').replaceChildren(...rows);
  const names = metrics.map((each) => each.name);
  for (const metric of first) if (names.includes(metric) && !shown.has(metric)) await loadHistory(metric);
}

async function showMemory() {
  const memory = await ask('/v1/memory');
  const rows = [['process', memory.process.now], ['process, highest', memory.process.peak],
                [memory.device + ' in all', memory.device_total], [memory.device + ', free', memory.device_free]];
  if (memory.tensors.peak > 0) rows.push(['tensors', memory.tensors.now], ['tensors, highest', memory.tensors.peak]);
  at('memory-list').replaceChildren(
    ...rows.flatMap(([name, value]) => [element('dt', name), element('dd', bytesText(value))]));
}

const handlers = {
  step: addNumbers,
  validation: (data) => { addNumbers(data); if (!shown.has('validation_loss')) loadHistory('validation_loss'); },
  notice: addNotice,
  state: showRun,
  command: showCommand,
  lost: () => { if (!/^(ended|failed)/.test(at('state').textContent)) at('state').textContent = 'not connected'; },
  gap: () => { for (const metric of shown.keys()) loadHistory(metric); },
};

async function load() {
  showRun(await ask('/v1/run'));
  at('toml').textContent = (await ask('/v1/configuration')).toml;
  at('notice-list').dataset.has = '';
  at('notice-list').replaceChildren(element('li', 'none yet'));
  (await ask('/v1/notices?limit=200')).notices.forEach(addNotice);
  (await ask('/v1/commands')).commands.forEach(showCommand);
  await showMetrics();
  for (const metric of shown.keys()) await loadHistory(metric);
  await showMemory();
}

at('simple').addEventListener('click', (event) => {
  if (event.target.dataset.command) command({command: event.target.dataset.command});
});
at('stop').addEventListener('click', () => at('confirm').showModal());
at('confirm').addEventListener('close', () => { if (at('confirm').returnValue === 'yes') command({command: 'stop'}); });
at('scale').addEventListener('submit', (event) => {
  event.preventDefault();
  command({command: 'scale_learning_rate', factor: Number(at('factor').value)});
});
at('interval').addEventListener('submit', (event) => {
  event.preventDefault();
  command({command: 'set_interval', monitor: at('monitor').value, every: Number(at('every').value)});
});
at('swap').addEventListener('submit', (event) => {
  event.preventDefault();
  let options = {};
  try {
    options = JSON.parse(at('options').value || '{}');
  } catch {
    at('answer').className = 'bad';
    at('answer').textContent = 'the options are not JSON';
    return;
  }
  command({command: 'swap', roles: {[at('role').value]: {...options, use: at('use').value}}});
});
at('more').addEventListener('change', () => { if (at('more').value) loadHistory(at('more').value); });

start(load, handlers);
setInterval(() => { if (isConnected && !document.hidden) { showMemory(); showMetrics(); } }, 5000);
