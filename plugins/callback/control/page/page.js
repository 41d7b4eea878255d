'use strict';
// The dashboard of callback/control. It needs a token for all data, which it keeps for this tab alone.
const shown = new Map();  // metric: its figure's parts
const first = ['loss', 'learning_rate', 'scale', 'samples_per_second', 'validation_loss', 'grad_norm'];
let token = '', units = new Map(), lastEvent = '', retry = 0;

function bytesText(value) {
  if (value === null) return 'not known';
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; value >= 1000 && i < units.length - 1; ++i) value /= 1000;
  return (i === 0 ? value : value.toPrecision(3)) + ' ' + units[i];
}

async function ask(path, options = {}) {
  const headers = {Authorization: 'Bearer ' + token, ...options.headers};
  const response = await fetch(path, {...options, headers});
  if (response.ok) return response;
  let detail = 'status ' + response.status;
  try {
    detail = (await response.json()).detail;
  } catch { /* it has no body as JSON */ }
  const error = new Error(detail);
  error.status = response.status;
  throw error;
}
const get = async (path) => (await ask(path)).json();

// A chart: the range of each part as a line up and down.
function addChart(metric) {
  if (shown.has(metric)) return;
  const figure = element('figure'), caption = element('figcaption'), value = element('span');
  caption.append(element('span', metric), value);
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 1000 100');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  svg.append(path);
  const feet = element('p'), range = element('span'), steps = element('span');
  feet.append(range, steps);
  figure.append(caption, svg, feet);
  at('charts').append(figure);
  shown.set(metric, {svg, path, value, range, steps, points: [], due: false, loading: false});
}

function draw(metric) {
  const chart = shown.get(metric);
  chart.due = false;
  const points = chart.points;
  if (points.length === 0) return;
  const course = courseOf(points);
  chart.path.setAttribute('d', course.line);
  chart.value.textContent = course.value + (units.get(metric) ? ' ' + units.get(metric) : '');
  chart.range.textContent = course.range;
  chart.steps.textContent = course.steps;
  chart.svg.setAttribute('aria-label', metric + ', now ' + chart.value.textContent + ', from ' + course.range + ' in ' +
                         course.steps);
}

function drawSoon(metric) {
  const chart = shown.get(metric);
  if (chart.due) return;
  chart.due = true;
  requestAnimationFrame(() => draw(metric));
}

// One request at a time for each chart.
async function loadHistory(metric) {
  addChart(metric);
  const chart = shown.get(metric);
  if (chart.loading) return;
  chart.loading = true;
  try {
    chart.points = (await get('/v1/history?points=512&metric=' + encodeURIComponent(metric))).points;
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
  for (const button of document.querySelectorAll('#simple button, #scale button, #swap button')) button.disabled = isOver;
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
    else drawSoon(metric);
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
    const response = await ask('/v1/commands', {method: 'POST', body: JSON.stringify(body),
                                                headers: {'Content-Type': 'application/json'}});
    const answered = await response.json();
    showCommand(answered);
    answer.className = answered.state === 'refused' ? 'bad' : '';
    answer.textContent = commandText(answered);
  } catch (error) {
    answer.className = 'bad';
    answer.textContent = body.command + ': ' + error.message;
  }
}

async function showMetrics() {
  const {metrics} = await get('/v1/metrics');
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
  const memory = await get('/v1/memory');
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
  gap: () => { for (const metric of shown.keys()) loadHistory(metric); },
};

function take(block) {
  let event = 'message', data = '';
  for (const line of block.split('\n')) {
    if (line.startsWith('event: ')) event = line.slice(7);
    if (line.startsWith('data: ')) data += line.slice(6);
    if (line.startsWith('id: ')) lastEvent = line.slice(4);
  }
  if (data !== '' && handlers[event]) handlers[event](JSON.parse(data));
}

// EventSource cannot send a token.
async function stream() {
  for (;;) {
    try {
      const response = await ask('/v1/events', {headers: lastEvent === '' ? {} : {'Last-Event-ID': lastEvent}});
      if (retry > 0) await load();
      retry = 0;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ''; ;) {
        const {value, done} = await reader.read();
        if (done) break;
        const blocks = (text + value).split('\n\n');
        text = blocks.pop();
        blocks.forEach(take);
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403) return showLogin(error.message);
    }
    retry += 1;
    if (!/^(ended|failed)/.test(at('state').textContent)) at('state').textContent = 'not connected';
    await new Promise((done) => setTimeout(done, Math.min(1000 * 2 ** retry, 30000) * (0.5 + Math.random() / 2)));
  }
}

async function load() {
  showRun(await get('/v1/run'));
  at('toml').textContent = (await get('/v1/configuration')).toml;
  at('notice-list').dataset.has = '';
  at('notice-list').replaceChildren(element('li', 'none yet'));
  (await get('/v1/notices?limit=200')).notices.forEach(addNotice);
  (await get('/v1/commands')).commands.forEach(showCommand);
  await showMetrics();
  for (const metric of shown.keys()) await loadHistory(metric);
  await showMemory();
}

async function connect(given) {
  token = given;
  try {
    await load();
  } catch (error) {
    return showLogin(error.message);
  }
  sessionStorage.setItem('token', token);
  at('login').hidden = true;
  at('main').hidden = false;
  stream();
  setInterval(() => { if (retry === 0 && !document.hidden) { showMemory(); showMetrics(); } }, 5000);
}

at('login').addEventListener('submit', (event) => { event.preventDefault(); connect(at('token').value.trim()); });
at('simple').addEventListener('click', (event) => {
  if (event.target.dataset.command) command({command: event.target.dataset.command});
});
at('stop').addEventListener('click', () => at('confirm').showModal());
at('confirm').addEventListener('close', () => { if (at('confirm').returnValue === 'yes') command({command: 'stop'}); });
at('scale').addEventListener('submit', (event) => {
  event.preventDefault();
  command({command: 'scale_learning_rate', factor: Number(at('factor').value)});
});
at('swap').addEventListener('submit', (event) => {
  event.preventDefault();
  let options = {};
  try {
    options = JSON.parse(at('options').value || '{}');
  } catch {
    at('answer').className = 'bad';
    at('answer').textContent = 'the options are no JSON';
    return;
  }
  command({command: 'swap', roles: {[at('role').value]: {...options, use: at('use').value}}});
});
at('more').addEventListener('change', () => { if (at('more').value) loadHistory(at('more').value); });

// #token=… is never sent to a server; it goes from the address as soon as it is read.
const given = new URLSearchParams(location.hash.slice(1)).get('token') || sessionStorage.getItem('token');
if (location.hash) history.replaceState(null, '', location.pathname);
if (given) connect(given);
else at('token').focus();
