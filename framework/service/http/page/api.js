'use strict';
// The OpenAPI document of this service, as a page.

function table(heads, rows) {
  const head = element('tr'), body = element('tbody');
  head.append(...heads.map((text) => element('th', text, {scope: 'col'})));
  for (const cells of rows) {
    const row = element('tr');
    row.append(...cells.map((text) => element('td', text)));
    body.append(row);
  }
  const made = element('table'), top = element('thead'), wide = element('div', undefined, {class: 'wide'});
  top.append(head);
  made.append(top, body);
  wide.append(made);
  return wide;
}

// "integer, from 1 to 100"
function typeText(schema) {
  if (schema.enum) return schema.enum.join(', ');
  const bounds = (schema.minimum === undefined ? '' : ', from ' + schema.minimum) +
    (schema.maximum === undefined ? '' : ' to ' + schema.maximum);
  return [schema.type].flat().join(' or ') + bounds;
}

function schemaOf(title, schema) {
  const details = element('details');
  details.append(element('summary', title), element('pre', JSON.stringify(schema, null, 2), {tabindex: 0}));
  return details;
}

function operationOf(path, method, operation) {
  const section = element('section', undefined, {id: operation.operationId, class: 'all'});
  const title = element('h2');
  title.append(element('code', method.toUpperCase() + ' ' + path));
  const scope = operation['x-scope'];
  section.append(title, element('p', operation.summary + '.'),
                 element('p', scope ? 'Needs a token of the scope ' + scope + '.' : 'Needs no token.'));
  if (operation.parameters) {
    section.append(table(['parameter', 'in', 'value', 'meaning'], operation.parameters.map(
      (each) => [each.name + (each.required ? '' : ' (optional)'), each.in, typeText(each.schema), each.description])));
  }
  const body = operation.requestBody?.content['application/json'].schema;
  if (body) section.append(schemaOf('Schema of the body', body));
  section.append(table(['status', 'when'], Object.entries(operation.responses).map(
    ([status, response]) => [status, response.description])));
  const result = operation.responses['200']?.content['application/json']?.schema;
  if (result) section.append(schemaOf('Schema of the answer', result));
  return section;
}

async function showDocument() {
  const response = await fetch('/v1/openapi.json');
  if (!response.ok) throw new Error('status ' + response.status);
  const api = await response.json();
  at('title').textContent = api.info.title + ', API';
  at('state').textContent = 'OpenAPI ' + api.openapi + ', version ' + api.info.version;
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      at('routes').append(operationOf(path, method, operation));
    }
  }
  const schemas = element('section', undefined, {id: 'schemas', class: 'all'});
  schemas.append(element('h2', 'Schemas'));
  for (const [name, schema] of Object.entries(api.components.schemas)) schemas.append(schemaOf(name, schema));
  at('routes').append(schemas);
}
showDocument().catch((error) => { at('state').textContent = error.message; });
