// `vernier new toml` of each kind of data: the task, what is said of it, and a run that trains.
#include <doctest/doctest.h>
#include <torch/script.h>
#include <vernier/safetensors.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <regex>
#include <sstream>

#include "picture_folder.h"
#include "run_folder.h"
#include "thrown.h"

namespace new_kinds_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

constexpr const char* words[] = {"rows",  "tables", "numbers", "series", "pictures", "models", "letters",
                                 "words", "books",  "waves",   "stones", "rivers",   "cities"};

std::string sentence(int number, int length) {
  std::string text;
  for (int i = 0; i < length; ++i)
    text += std::string(i == 0 ? "" : " ") + words[(number * 7 + i * i * 3 + number / 5) % 13];
  return text + " " + std::to_string(number);
}

// Lines that repeat a pattern in which # is a number, @ a sentence, % a pair of words, and ^ one of two classes.
std::string lines(const std::string& head, const std::string& pattern, int count) {
  std::string text = head;
  for (int i = 0; i < count; ++i) {
    for (const char c : pattern) {
      text += c == '#'   ? std::to_string(i)
              : c == '~' ? std::to_string(i / 4)
              : c == '@' ? sentence(i, 9)
              : c == '%' ? sentence(i, 2)
              : c == '^' ? (i % 2 == 0 ? "good" : "bad")
              : c == '$'
                  ? std::to_string(std::round(1000 * (10 + std::sin(i * std::numbers::pi / 6) + i * 0.01)) / 1000)
                  : std::string(1, c);
    }
    text += '\n';
  }
  return text;
}

std::string months(bool has_shops = false) {
  std::string text = has_shops ? "month,shop,sales\n" : "month,sales\n";
  for (int i = 0; i < 72; ++i) {
    const auto month =
        std::to_string(2001 + i / 12) + "-" + (i % 12 < 9 ? "0" : "") + std::to_string(i % 12 + 1) + "-01";
    const auto value = std::to_string(100 + 30 * std::sin(i * std::numbers::pi / 6) + i);
    text +=
        has_shops ? month + ",mill," + value + "\n" + month + ",north,9" + value + "\n" : month + "," + value + "\n";
  }
  return text;
}

std::string npy(const std::string& shape, int count) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  std::vector<float> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(static_cast<float>(std::sin(i * 0.3)));
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n' +
         std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
}

// A model without weights, with the tokenizer of the tests.
void write_model(const TemporaryFolder& folder, const std::string& type) {
  fs::copy(VERNIER_SOURCE_DIR "/tests/oracles/tokenizers/gpt2", folder.path() / "model");
  folder.write("model/config.json", type == "gpt2" ? R"({"model_type": "gpt2", "vocab_size": 600, "n_embd": 8,
    "n_layer": 1, "n_head": 2, "n_positions": 64})"
                                                   : R"({"model_type": "llama", "vocab_size": 600, "hidden_size": 8,
    "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64})");
}

// Weights for the model of type llama.
void write_weights(const TemporaryFolder& folder) {
  vernier::Tensors weights = {{"model.embed_tokens.weight", torch::ones({600, 8})},
                              {"lm_head.weight", torch::ones({600, 8})},
                              {"model.norm.weight", torch::ones({8})}};
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
    weights[layer + name + ".weight"] = torch::ones({8});
  }
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    weights[layer + name + ".weight"] = torch::eye(8);
  }
  vernier::save_safetensors(folder / "model/model.safetensors", weights);
}

// The warnings of a run, without the honest one that so few steps have taught the model nothing.
std::string warnings_in(const std::string& text) {
  std::istringstream all(text);
  std::string others;
  for (std::string line; std::getline(all, line);) {
    if (!says(line, "the model is worse than no model")) others += line + '\n';
  }
  return others;
}

struct Kind {
  std::function<void(const TemporaryFolder&)> fill;
  Arguments arguments;  // after `new toml`
  std::string says;     // a pattern of what is printed
  std::string toml;     // in the file
  bool trains = false;
};

const auto file = [](const char* name, const std::string& text) {
  return [=](const TemporaryFolder& folder) { folder.write(name, text); };
};

const auto with_model = [](const char* type, const char* name, const std::string& text) {
  return [=](const TemporaryFolder& folder) {
    write_model(folder, type);
    folder.write(name, text);
  };
};

const std::string chats =
    lines("", R"({"messages": [{"role": "user", "content": "%"}, {"role": "assistant", "content": "%"}]})", 24);

const std::vector<Kind> kinds = {
    {file("docs.csv", lines("doc,module\n", "\"@\",^", 60)),
     {"docs.csv", "--target", "module"},
     "60 rows, texts in doc\ntask/text: classification of 2 classes: bad 30, good 30; (.|\n)*54 samples, 6 held out\n"
     "wrote docs.toml\n",
     "use = \"text\"\ndata = \"docs.csv\"\ntext = \\[\"doc\"\\]\ntarget = \"module\"\n",
     true},
    {file("docs.jsonl", lines("", R"({"doc": "@", "len": $})", 60)),
     {"docs.jsonl", "--target", "len"},
     "60 lines, texts in doc\ntask/text: regression of len ",
     "use = \"text\"\n"},
    {file("flags.jsonl",
          lines("", R"({"doc": "@", "label": true})", 30) + lines("", R"({"doc": "@", "label": false})", 30)),
     {"flags.jsonl"},
     "classification of 2 classes: false 30, true 30",
     "use = \"text\"\n"},
    {file("results.jsonl", lines("", R"({"search": ~, "title": "@", "clicks": #})", 80)),
     {"results.jsonl"},
     "task/text: ranking by clicks (.|\n)*20 groups of search(.|\n)*--set task.kind=regression   # a number of each "
     "text",
     "kind = \"ranking\"\n(.|\n)*group = \"search\"\n",
     true},
    {file("names.csv", lines("name,gender\n", "na#me,^", 60)), {"names.csv"}, "texts in name\n", "use = \"text\"\n"},
    {file("people.csv", lines("name,age,fare,survived\n", "\"Mr. %\",#,$,^", 60)),
     {"people.csv"},
     "task/tabular: (.|\n)*new toml people.csv --set task.use=text   # its texts alone",
     "use = \"tabular\"\n"},
    {file("people.csv", lines("name,age,fare,survived\n", "\"Mr. %\",#,$,^", 60)),
     {"people.csv", "--set", "task.use=text"},
     "texts in name; not read: age,fare\ntask/text: classification of 2 classes",
     "use = \"text\"\n"},
    {file("book.txt", lines("", "@.", 60)),
     {"book.txt"},
     "bytes of text, of which a language model learns\ntask/gpt: (.|\n)* held out\nwrote book.toml\n",
     "use = \"gpt\"\ndata = \\[\"book.txt\"\\]\n",
     true},
    {[](const TemporaryFolder& f) {
       f.write("books/a.txt", lines("", "@.", 60)), f.write("books/b.txt", lines("", "@.", 60));
     },
     {"books"},
     "books: [0-9]+ bytes of text",
     "use = \"gpt\"\ndata = \\[\"books\"\\]\n"},
    {file("air.csv", months()),
     {"air.csv"},
     "a series of 72 steps in the order of month\nforecasts the next value of sales\n(.|\n)*task/sequence: (.|\n)* "
     "held out\n(.|\n)*new toml air.csv --target sales --set task.use=tabular",
     "use = \"sequence\"\nkind = \"forecast\"\ndata = \"air.csv:sales\"\n",
     true},
    {file("air.csv", lines("\"\",time,x\n", "#,#,$", 48)),
     {"air.csv"},
     "a series of 48 steps",
     "data = \"air.csv:x\"\n"},
    {file("one.csv", lines("", "$", 48)),
     {"one.csv"},
     "a series of 48 steps",
     "data = \"one.csv:1\"\n(.|\n)*header = false\n"},
    {file("plants.csv", lines("\"\",weight,group\n", "#,$,^", 60)), {"plants.csv"}, "", "use = \"tabular\"\n"},
    {file("few.csv", lines("year,firm,value\n", "1,a#,$\n2,a#,$\n3,a#,$", 20)), {"few.csv"}, "", "use = \"tabular\"\n"},
    {file("shops.csv", months(true)),
     {"shops.csv"},
     "2 series of up to 72 steps in the order of month\n",
     "data = \"shops.csv:sales\"\n(.|\n)*series = \"shop\"\n"},
    {file("x.npy", npy("60,", 60)), {"x.npy"}, "x.npy: a series of 60 steps\n", "kind = \"forecast\"\n"},
    {file("x.npy", npy("60, 1", 60)), {"x.npy"}, "x.npy: a series of 60 steps\n", "kind = \"forecast\"\n"},
    {[](const TemporaryFolder& f) { f.write("x.npy", npy("60, 2", 120)), f.write("y.npy", npy("60,", 60)); },
     {"x.npy", "--set", "task.kind=forecast"},
     "x.npy: a series of 60 steps\n",
     "kind = \"forecast\"\ndata = \"x.npy\"\n"},
    {[](const TemporaryFolder& f) { f.write("x.npy", npy("60, 4", 240)), f.write("y.npy", npy("60,", 60)); },
     {"x.npy", "--target", "y.npy", "--set", "task.use=sequence"},
     "x.npy: 60 sequences of 4 steps",
     "kind = \"regression\"\ndata = \"x.npy\"\ntargets = \"y.npy\"\n"},
    {[](const TemporaryFolder& f) { write_stripes(f, "d", 6); },
     {"d"},
     "task/images: (.|\n)*new toml MODEL.pt2 d ",
     "use = \"images\"\n"},
    {with_model("gpt2", "chats.jsonl", chats),
     {"chats.jsonl", "model"},
     "24 lines of chats\nmodel: a model of type 'gpt2' without weights",
     "use = \"gpt\"\nfolder = \"model\"\ndata = \\[\"chats.jsonl\"\\]\n(.|\n)*new_tokens = \\[\"<\\|im_start\\|>\", "
     "\"<\\|im_end\\|>\"\\]\n(.|\n)*context = 64\nweights = \"random\"\n"},
    {with_model("llama", "pairs.jsonl", lines("", R"({"prompt": "%", "chosen": "%", "rejected": "@"})", 24)),
     {"model", "pairs.jsonl"},
     "24 lines of pairs of answers",
     "use = \"llama\"\n(.|\n)*objective = \"dpo\"\n",
     true},
    {[](const TemporaryFolder& f) {
       write_model(f, "llama");
       write_weights(f);
       f.write("docs.csv", lines("doc,label\n", "\"@\",^", 40));
     },
     {"docs.csv", "--set", "task.folder=model", "--set", "task.length=48"},
     "task/text: classification",
     "use = \"text\"\n(.|\n)*folder = \"model\"\n"},
    {[](const TemporaryFolder& f) {
       fs::copy_file(VERNIER_SOURCE_DIR "/tests/plugins/task/graphs/mlp.pt2", f.path() / "mlp.pt2");
       f.write("x.csv", lines("a,b,c,d,label\n", "$,1,$,2,^", 60));
     },
     {"mlp.pt2", "x.csv"},
     "a program of torch.export\ninputs x.csv:a,b,c,d; target x.csv:label\ntask/graph: 2 classes",
     "use = \"graph\"\n"},
    {[](const TemporaryFolder& f) {
       torch::jit::Module script("Sum");
       script.register_parameter("w", torch::ones({2, 2}).set_requires_grad(true), false);
       script.define("def forward(self, x):\n  return x.float().matmul(self.w)\n");
       script.save((f.path() / "sum.pt").string());
       f.write("x.csv", lines("a,b,label\n", "$,#,^", 60));
     },
     {"sum.pt", "x.csv"},
     "sum.pt: TorchScript\n",
     "use = \"script\"\n"}};

struct Refusal {
  std::function<void(const TemporaryFolder&)> fill;
  Arguments arguments;
  std::string says;
  std::string mended = "";  // the file that the command in the message writes, which `new toml` then takes
};

const auto with_run = [](const char* name, const std::string& text) {
  return [=](const TemporaryFolder& folder) {
    folder.write("runs/a/summary.json", "{}");
    folder.write("runs/a/log.txt", "a line\n");
    folder.write(name, text);
  };
};

const std::vector<Refusal> refusals = {
    {file("d.csv", lines("a,b,y\n", "$,#,^", 40)),
     {"d.csv", "--set", "task.misssing=mean"},
     "d.toml:[0-9]+: task/tabular: `misssing` is not an option here; did you mean `missing`\\?; nothing was written"},
    {file("d.csv", lines("a,b,y\n", "$,#,^", 40)), {"d.csv", "--set", "task.text=[\"doc\"]"}, "nothing was written"},
    {file("d.csv", lines("a,b,y\n", "$,#,^", 40)), {"d.csv", "--set", "task.use=text"}, "has no column of texts"},
    {file("d.csv", lines("a,b,y\n", "$,#,^", 40)),
     {"d.csv", "--set", "task.use=nope"},
     "these data are for task/tabular"},
    {file("d.csv", ""), {"e.csv"}, "'e.csv' does not exist; did you mean 'd.csv'\\?"},
    {file("d.csv", ""),
     {"https://x.org/d.csv"},
     "does not exist; .*: download it with `curl -LO 'https://x.org/d.csv'`"},
    {file("d.csv", ""), {"data\\d.csv"}, "is a path of Windows; did you mean 'd.csv'"},
    {file("d.parquet", "PAR1...."),
     {"d.parquet"},
     "is a Parquet file, .*pandas.read_parquet\\('d.parquet'\\).to_csv\\('d.csv'"},
    {file("d.xlsx", "PK\x03\x04"), {"d.xlsx"}, "is a sheet of Excel, .*pandas.read_excel"},
    {file("d.feather", "ARROW1"), {"d.feather"}, "is a Feather file, .*pandas.read_feather"},
    {file("d.arrow", "ARROW1"), {"d.arrow"}, "is an Arrow file, .*pandas.read_feather"},
    {file("d.csv", std::string("PAR1\x15\x04", 6)),
     {"d.csv"},
     "is a Parquet file, .*read_parquet\\('d.csv'\\).to_csv\\('converted_d.csv'"},
    {file("d.txt.zst", "\x28\xb5\x2f\xfd"), {"d.txt.zst"}, "is packed by Zstandard, .*zstd -dc 'd.txt.zst' > 'd.txt'"},
    {file("d.pkl", "\x80\x04"), {"d.pkl"}, "is a pickle of Python, .*pandas.read_pickle"},
    {file("d.h5", "\x89HDF"), {"d.h5"}, "is an HDF5 file, .*pandas.read_hdf"},
    {file("d.zip", "PK\x03\x04"), {"d.zip"}, "is a ZIP archive, .*mkdir -p 'd' && python3 -m zipfile -e 'd.zip' 'd'"},
    {file("d.tar.gz", "\x1f\x8b"), {"d.tar.gz"}, "is a tar archive, .*mkdir -p 'd' && tar -xf 'd.tar.gz' -C 'd'"},
    {file("chats.jsonl", chats),
     {"chats.jsonl"},
     "has chats, from which a published model learns; .*new toml chats.jsonl FOLDER"},
    {file("n.jsonl", lines("", R"({"a": #, "b": $})", 20)), {"n.jsonl"}, "pandas.read_json\\('n.jsonl', lines=True\\)"},
    {file("list.csv", "image,breed\n1.png,a\n2.png,b\n"), {"list.csv"}, "set_axis\\(\\['file', 'label'\\]"},
    {with_model("llama", "x", ""), {"model"}, "a model of type 'llama'; name the data .*new toml model texts.jsonl"},
    {with_run("d.csv", ""),
     {"runs/a"},
     "is the folder of a run, and not data; .*: vernier predict runs/a --input FILE"},
    {with_run("d.csv", ""), {"runs"}, "has runs, and not data; .*: vernier predict runs/a --input FILE"},
    {with_run("d.csv", lines("a,y\n", "$,^", 40)), {"."}, "'.' has runs beside data; .*: vernier new toml d.csv"},
    {with_run("notes.txt", "some text\n"), {"."}, "vernier new toml notes.txt; .* --set task.use=gpt"},
    {file("d/a.csv", "x,y\n"), {"d"}, "'d' is a folder of tables or arrays; .*: vernier new toml d/a.csv"},
    {file("d/a/1.png", ""), {"d/a/1.png"}, "is a single picture; .*: vernier new toml d\n"},
    {file("d.csv", ""), {"d.csv", "--target", ""}, "--target is empty; name a column .*: --set task.kind=forecast"},
    {file("x.npy", npy("60, 2", 120)),
     {"x.npy"},
     "as in --target y.npy; or forecast its columns: --set task.kind=fore"},
    {file("d.jsonl", lines("", R"({"doc": "@", "label": "^"})", 60) + R"({"doc": "no label"})"),
     {"d.jsonl"},
     "'d.jsonl' line 61 has no 'label'; leave such lines out: python3 ",
     "d_whole.jsonl"},
    {file("d.json", "[" + lines("", R"({"doc": "@", "label": "^"},)", 60) + R"({"doc": "the last", "label": "good"}])"),
     {"d.json"},
     "is an array, and texts are read from JSON Lines: python3 ",
     "d.jsonl"},
    {file("d.jsonl.gz", ""), {"d.jsonl.gz"}, "is packed; unpack it: gunzip d.jsonl.gz"},
    {file("w.pt", "PK\x03\x04 data.pkl"), {"w.pt", "w.pt"}, "is no TorchScript: it has weights alone"},
    {file("m.pt2", "PK\x03\x04"),
     {"m.pt2"},
     "a program of torch.export; name the data .*m.pt2 data.csv --target COLUMN"}};

}  // namespace

TEST_CASE("new toml of each kind of data writes a run that check accepts and that trains") {
  for (const auto& each : kinds) {
    CAPTURE(each.toml);
    RunFolder place("");
    each.fill(place.folder);
    Arguments all = {"new", "toml"};
    all.insert(all.end(), each.arguments.begin(), each.arguments.end());
    CHECK(place.call(all) == 0);
    CHECK(place.err == "");
    CHECK_MESSAGE(std::regex_search(place.out, std::regex(each.says)), place.out);
    const auto start = place.out.find("wrote ") + 6;
    const auto name = place.out.substr(start, place.out.find('\n', start) - start);
    const auto text = read_text(place.at(name));
    CHECK_MESSAGE(std::regex_search(text, std::regex(each.toml)), text);
    if (!each.trains) continue;
    CHECK(place.call({"train", name, "--set", "run.epochs=1", "--set", "run.validate_every=0", "--quiet"}) == 0);
    CHECK(warnings_in(place.err) == "");
  }
}

TEST_CASE("new toml refuses in one line, with a remedy, what it cannot read, and writes nothing") {
  for (const auto& each : refusals) {
    CAPTURE(each.says);
    RunFolder place("");
    each.fill(place.folder);
    fs::remove(place.at("run.toml"));
    Arguments all = {"new", "toml"};
    all.insert(all.end(), each.arguments.begin(), each.arguments.end());
    CHECK(place.call(all) == 2);
    CHECK(is_one_line(place.err));
    CHECK_MESSAGE(std::regex_search(place.err, std::regex(each.says)), place.err);
    for (const auto& entry : fs::directory_iterator(place.folder.path())) CHECK(entry.path().extension() != ".toml");
    if (each.mended.empty()) continue;
    const auto command = place.err.substr(place.err.find("python3"));
    CHECK(std::system(("cd '" + place.folder.path().string() + "' && " + command).c_str()) == 0);
    CHECK_MESSAGE(place.call({"new", "toml", each.mended}) == 0, place.err);
  }
}

TEST_CASE("new DATA is new toml DATA, and its runs have curves") {
  RunFolder place("");
  place.folder.write("air.csv", months());
  CHECK(place.call({"new", "air.csv"}) == 0);
  CHECK(place.call({"train", "air.toml", "--quiet", "--set", "run.epochs=1"}) == 0);
  CHECK(place.call({"report", "runs/air"}) == 0);
  CHECK_FALSE(says(read_text(place.at("report.html")), "no curve"));
}

}  // namespace new_kinds_test
