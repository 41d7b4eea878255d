// Chats become the texts that apply_chat_template of transformers makes of them.
// tests/oracles/chat_templates.py recorded the reference, and records that of real templates for
// VERNIER_CHAT_TEMPLATES.
#include <doctest/doctest.h>

#include <cstdlib>

#include "loaded_task.h"
#include "temporary_folder.h"
#include "text/chat_template.h"

namespace chat_template_test {

using vernier::ChatTemplate;
using vernier::OrderedJson;

namespace {

std::string rendered(const std::string& source, const OrderedJson& messages = OrderedJson::array()) {
  return ChatTemplate(source, "it").render(messages, false);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("oracle chat templates: texts are those of transformers, and what it refuses is refused") {
  std::vector<std::string> paths = {VERNIER_SOURCE_DIR "/tests/oracles/chat_templates.json"};
  if (const char* more = std::getenv("VERNIER_CHAT_TEMPLATES")) paths.emplace_back(more);
  for (const auto& path : paths) {
    for (const auto& recorded : OrderedJson::parse(read_text(path))) {
      CAPTURE(recorded["name"].get<std::string>());
      std::optional<ChatTemplate> chats;
      const auto refused = refusal([&] { chats.emplace(recorded["template"], "it", recorded["variables"]); });
      CHECK_MESSAGE(refused.empty(), refused);
      if (!chats) continue;
      for (const auto& one : recorded["cases"]) {
        CAPTURE(one["messages"].dump());
        CAPTURE(one["asks"].get<bool>());
        std::string text;
        const auto reason = refusal([&] { text = chats->render(one["messages"], one["asks"], one["tools"]); });
        CHECK_MESSAGE(reason.empty() == one.contains("text"), reason, one.value("error", ""));
        if (reason.empty() && one.contains("text")) CHECK(text == one["text"].get<std::string>());
      }
    }
  }
}

TEST_CASE("chat templates: a wrong template, and one that takes too long, ends in one line with its place") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\n{% for x in y %}", "line 2: endfor is missing"},
      {"{% if x %}{% endfor %}", "endfor does not end the block that is open here"},
      {"{{ x", "a tag has no end"},
      {"{{ 'x }}", "a text has no closing quote"},
      {"{{ x ! }}", "'!' is not a part of Jinja"},
      {"{% include 'x' %}", "the statement include is not supported"},
      {"\n\n{{ 1 | sum_up }}", "line 3: the filter sum_up is not supported"},
      {"{{ 1 is prime }}", "the test prime is not supported"},
      {"{{ x.y }}", "'x' is undefined, and has no 'y'"},
      {"{{ 'a'.frob() }}", "the method frob() of texts is not supported"},
      {"{{ raise_exception('no ' ~ 'such') }}", "line 1: the template says: no such"},
      {"{{ 1 + 'a' }}", "'+' does not take a whole number and a text"},
      {"{{ f(*x) }}", "arguments with * are not supported"},
      {"{{ 9223372036854775807 + 1 }}", "a number is too large"},
      {"{{ 1 // 0 }}", "a division by 0"},
      {"{% set x.y = 1 %}", "'x' is not a namespace"},
      {"{% for i in range(10000000) %}{% endfor %}", "range() is too long"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
       "too long a text"},
      {"{{ 'a' * 999999999 }}", "too long a text"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "call each other too deeply"},
      {"{% macro f() %}{{ f()" + repeated("~1", 990) + " }}{% endmacro %}{{ f() }}", "macros are nested too deeply"},
      {"{% set n = namespace(x=[]) %}{% for i in range(300000) %}{% set n.x = [n.x] %}{% endfor %}",
       "a value that is nested too deeply"},
      {"{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
       "too large a value"},
      {"{% set n = namespace(x=1) %}{% for i in range(300000) %}{% set n = namespace(x=n) %}{% endfor %}",
       "a namespace cannot be a part"},
      {"{% set n = namespace() %}{% set n.x = n %}", "a namespace cannot be a part"},
      {"{{ 'a\nb' | indent(-1) }}", "an indentation must be from 0 to 1000"},
      {"{{ 'a\nb' | indent(99999999999) }}", "an indentation must be from 0 to 1000"},
      {"{{ [1] | tojson(indent=99999999999) }}", "an indentation must be from 0 to 1000"},
      {"{% for i in [1] %}{% generation %}{{ i }}{% endfor %}", "endfor does not end the block that is open here"},
      {"{{ 4 is divisibleby(0) }}", "a division by 0"},
      {"{{ (-9223372036854775807 - 1) | abs }}", "a number is too large"},
      {"{{ (-9223372036854775807 - 1) // -1 }}", "a number is too large"},
      {"{{ 1e300 | int }}", "int needs a number of less than 2^63"},
      {"{{ range(10000) | unique | length }}", "too many steps"},
      {"{% set x = 'a' * 2000000 %}{% set y = x ~ 'b' %}{% set z = x ~ 'c' %}{% for i in range(99) %}{{ "
       "z.startswith([" +
           repeated("y, ", 20) + "y]) }}{% endfor %}",
       "too many steps"},
      {"{% set l = range(1000) %}{% for i in range(10000) %}{{ -1 in l }}{% endfor %}", "too many steps"},
      {"{{ ('ab' * 1000000) | list }}", "too long for a list of its characters"},
      {"{{ ('ab' * 1000001).split('a') }}", "too many parts"},
      {"{{ " + std::string(900, '(') + "1" + std::string(900, ')') + " }}", "nested too deeply"},
      {"{{ 1" + repeated(" + 1", 5000) + " }}", "a tag is too long"},
      {repeated("{% if x %}", 5000), "blocks are nested too deeply"},
      {"\xFF", "is not UTF-8"},
      {"{{ 'a' | upper(1) }}", "the filter upper is not supported with more than 0 arguments"},
      {"{{ [1] | sort(order='up') }}", "the filter sort is not supported with the argument order"},
      {"{{ [1] | sort(true, reverse=true) }}", "the filter sort has two values for its argument reverse"},
      {"{{ [1] | map(attribute='a', filter='b') }}", "the filter map is not supported with the argument filter"},
      {"{{ ['a'] | map('upper', 1) | list }}", "the filter upper is not supported with more than 0 arguments"},
      {"{{ {'a': 1} | dictsort(by='value') }}", "the filter dictsort is not supported with the argument by"},
      {"{{ '1f' | int(0, 16) }}", "the filter int is not supported with more than 1 arguments"},
      {"{{ '1_000' | int }}", "int of a number with '_' is not supported"},
      {"{{ 'a'.find('a', 1) }}", "the method find() is not supported with more than 1 arguments"},
      {"{{ 'a'.count('a', 1) }}", "the method count() is not supported with more than 1 arguments"},
      {"{{ 'a'.split(by='a') }}", "the method split() is not supported with the argument by"},
      {"{{ {}.get('a', 1, 2) }}", "the method get() is not supported with more than 2 arguments"},
      {"{{ 1 is defined(1) }}", "the test defined is not supported with more than 0 arguments"},
      {"{{ 4 is divisibleby(num=2) }}", "the test divisibleby is not supported with the argument num"},
      {"{{ dict([['a', 1]]) }}", "dict() and namespace() take names, or one mapping"},
  };
  for (const auto& [source, reason] : cases) {
    CAPTURE(source.substr(0, 80));
    const auto text = refusal([&, source = source] { rendered(source); });
    CHECK_MESSAGE(contains(text, reason), text, " should have: ", reason);
  }
}

// A search that takes the product of both lengths, or a look at each name, would take hours here.
TEST_CASE("chat templates: searches take time linear in their texts, and variables are found at once") {
  const std::string texts = "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 ~ 'b' %}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ a.find(b) }}", "-1"},
      {"{{ a.count(b) }}", "0"},
      {"{{ b in a }}", "False"},
      {"{{ a.split(b) | length }}", "1"},
      {"{{ a.replace(b, '') | length }}", "4000000"},
      {"{{ (a ~ b).find(b) }}", "4000000"},
  };
  for (const auto& [source, text] : cases) {
    CAPTURE(source);
    CHECK(rendered(texts + source) == text);
  }
  std::string names;
  for (int i = 0; i < 100'000; ++i) names += "{% set v" + std::to_string(i) + " = 1 %}";
  CHECK(rendered(names + "{{ v7 + v99999 }}") == "2");
}

TEST_CASE("chat templates: numbers at the ends of their range are Python's") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ 'abc'[1::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}", "bc"},
      {"{{ range(1, 9223372036854775807, 9223372036854775806) | length }}", "1"},
      {"{{ range(9223372036854775806, 9223372036854775807, 2) | length }}", "1"},
      {"{{ (-9223372036854775807 - 1) % -1 }}{{ (-9223372036854775807 - 1) is divisibleby(-1) }}", "0True"},
      {"{{ (-9223372036854775807 - 1) % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7 // 3 }}", "1 2 -2 -3"},
      {"{{ '' * 999999999999 }}", ""},
      {"{{ 'a\u00e9\u4e2db'[1:3] }}{{ 'a\u00e9\u4e2db'[-1] }}{{ 'a\u00e9'[1] }}{{ 'a'[1] }}", "é中bé"},
      {"{{ ' a  b c '.split() }}{{ ' a  b c '.split(none, 1) }}{{ 'aXbXc'.count('X') }}",
       "['a', 'b', 'c']['a', 'b c ']2"},
      {"{{ [1, 2] | first }}{{ 'ab' | last }}{{ {'x': 1} | first }}{{ [] | last }}", "1bx"},
  };
  for (const auto& [source, text] : cases) {
    CAPTURE(source);
    CHECK(rendered(source) == text);
  }
}

// The texts are those of Jinja 3.1.6.
TEST_CASE("chat templates: filters take the arguments that Jinja's take") {
  const std::string items = "{% set t = [{'f': {'n': 'b'}, 'l': [1, 2]}, {'f': {'n': 'A'}, 'l': [3]}] %}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{{ t | selectattr('f.n', 'equalto', 'b') | list | length }}", "1"},
      {"{{ t | map(attribute='l.1', default=9) | list }}", "[2, 9]"},
      {"{{ t | sort(attribute='f.n') | map(attribute='f.n') | join }}{{ t | join('-', attribute='f.n') }}", "Abb-A"},
      {"{{ ['a', 'B', 'A', 'b', 'é', 'É'] | unique | join }}{{ ['a', 'B', 'A'] | unique(true) | join }}", "aBéaBA"},
      {"{{ (t + t) | unique(attribute='f.n') | list | length }}", "2"},
      {"{{ {'b': 1, 'A': 2, 'B': 0} | dictsort | map('first') | join }}", "AbB"},
      {"{{ {'b': 1, 'A': 2, 'B': 0} | dictsort(true) | map('first') | join }}", "ABb"},
      {"{{ {10: 1, 9: 2} | dictsort | map('first') | join(' ') }}", "9 10"},
      {"{{ [{'a': 1}] | map('tojson', indent=2) | join }}", "{\n  \"a\": 1\n}"},
      {"{{ \"it's a tool_response (ab) x-y [c <e 9f\" | title }}", "It's A Tool_response (Ab) X-Y [C <E 9f"},
      {"{{ \"it's tool_response\".title() }}", "It'S Tool_Response"},
      {"{{ ['3.7', '+5', ' 5 ', '-7', '1e3', 'x', '', 'inf', '-3.7', '.5', '5.', '+-5', '12abc', "
       "'007'] "
       "| map('int') | join(' ') }}",
       "3 5 5 -7 1000 0 0 0 -3 0 5 0 0 7"},
      {"{{ 'x' | int(9) }}{{ none | int('y') }}{{ 'ÀB' | lower }}", "9yàb"},
      {"{{ 'aXbX' | replace(new='b', old='X') }}{{ 'a b'.split(maxsplit=1) }}", "abbb['a', 'b']"},
  };
  for (const auto& [source, text] : cases) {
    CAPTURE(source);
    CHECK(rendered(items + source) == text);
  }
}

TEST_CASE("chat templates: a folder's template and tokens are those that transformers takes") {
  const TemporaryFolder folder;
  const auto text = [&] {
    const auto chats = ChatTemplate::of_folder(folder.path());
    return chats ? chats->render(OrderedJson::parse(R"([{"role": "user", "content": "hi"}])"), true) : "none";
  };
  CHECK(text() == "none");
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<b>"}, "eos_token": null})");
  CHECK(text() == "none");
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "LlamaTokenizer", "bos_token": {"content": "<b>"}, "eos_token": null,
                   "chat_template": [{"name": "tool_use", "template": "x"},
                                     {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}]})");
  CHECK(text() == "<b>hi");
  folder.write("chat_template.jinja", "{{ eos_token }}{{ unk_token }}file");
  CHECK(contains(refusal(text), "needs unk_token, which is not named there"));
  folder.write("special_tokens_map.json", R"({"unk_token": "<u>"})");
  CHECK(text() == "<u>file");
  folder.write("special_tokens_map.json", R"({"unk_token": "<u>", "bos_token": "<m>", "eos_token": null})");
  folder.write("chat_template.jinja", "{{ bos_token }}{{ eos_token }}");
  CHECK(text() == "<m>");  // the map goes first
  folder.write("tokenizer_config.json", R"({"bos_token": "<b>", "eos_token": "<e>", "added_tokens_decoder": {}})");
  CHECK(text() == "<b><e>");  // unless the configuration has all tokens
  folder.write("chat_template.jinja", "{% if %}");
  CHECK(contains(refusal(text), "chat_template.jinja: the chat template, line 1: an expression is needed"));
}

TEST_CASE("chat templates: messages that no model of texts can read are refused with their places") {
  const auto refused = [](const char* messages) {
    return refusal([&] { vernier::require_messages(OrderedJson::parse(messages), "a.jsonl:7"); });
  };
  CHECK(contains(refused("[]"), "a.jsonl:7: \"messages\" must be an array"));
  CHECK(
      contains(refused(R"([{"role": "user", "content": "a"}, {"content": "b"}])"), "message 2 must be an object with"));
  CHECK(contains(refused(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
                 "message 1 has a part of the type \"image_url\""));
  for (const char* part :
       {R"({"type": "text"})", R"({"type": "text", "text": 1})", R"({"type": "text", "txt": "a"})"}) {
    CHECK(contains(refused((R"([{"role": "user", "content": [)" + std::string(part) + "]}]").c_str()),
                   "message 1 has a part of the type \"text\" without a text"));
  }
  CHECK(refused(R"([{"role": "user", "content": [{"type": "text", "text": "a"}]}])").empty());
}

}  // namespace chat_template_test
