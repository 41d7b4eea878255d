// `vernier new toml`: what it finds in data, and the runs that it writes.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <regex>

#include "picture_folder.h"
#include "run_folder.h"
#include "thrown.h"

namespace new_toml_test {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

namespace {

// Numbers that are neither drawn nor in order.
double wave(int i, double speed) {
  return std::round(1000 * std::sin(i * speed)) / 1000;
}

std::string flowers(const std::string& head = "sepal,petal,species\n") {
  std::string text = head;
  const char* const names[] = {"setosa", "versicolor", "virginica"};
  for (int i = 0; i < 90; ++i) {
    text += std::to_string(2 * (i % 3) + wave(i, 0.7)) + "," + std::to_string(wave(i, 1.3) - i % 3) + "," +
            names[i % 3] + "\n";
  }
  return text;
}

std::string rents(bool has_gaps = false) {
  std::string text = "district,area,rent\n";
  for (int i = 0; i < 120; ++i) {
    const double area = 60 + 40 * wave(i, 0.7);
    text += (i % 2 == 0 ? "mill," : "centre,") + (has_gaps && i % 9 == 0 ? "" : std::to_string(area)) + "," +
            std::to_string(area * (i % 2 == 0 ? 8.5 : 14.5)) + "\n";
  }
  return text;
}

std::string points() {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    const double x = wave(i, 0.7);
    text += std::to_string(x) + "," + std::to_string(wave(i, 1.9)) + "," + (x > 0 ? "1" : "0") + "\n";
  }
  return text;
}

std::string commas() {
  std::string text = "x;y\n";
  for (int i = 0; i < 40; ++i) text += std::to_string(i * 7 % 40) + ",25;" + std::to_string(i) + ",5\n";
  return text;
}

std::string trailing() {
  std::string text = "x,y,\n";
  for (int i = 0; i < 40; ++i) text += std::to_string(wave(i, 0.7)) + "," + std::to_string(wave(i, 0.9)) + ",\n";
  return text;
}

template <class Number>
std::string npy(const std::string& type, const std::string& shape, const std::vector<Number>& numbers) {
  std::string header = "{'descr': '" + type + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  header.resize(117, ' ');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + '\n' +
         std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number));
}

void write_arrays(const TemporaryFolder& folder, const std::string& shape, int numbers) {
  std::vector<float> x;
  std::vector<std::int64_t> y;
  for (int i = 0; i < numbers; ++i) x.push_back(static_cast<float>(wave(i, 0.7)));
  for (int i = 0; i < 60; ++i) y.push_back(i % 2);
  folder.write("x.npy", npy("<f4", shape, x));
  folder.write("y.npy", npy("<i8", "60,", y));
}

// A table as R and pandas write it, with the numbers of its rows in front. step: from one row to the next.
std::string counted_rows(const std::string& name, int step) {
  std::string text = name + ",a,kind\n";
  for (int i = 0; i < 101; ++i) {
    const int row = i * step % 101;
    text += std::to_string(row) + "," + std::to_string(wave(row, 0.7)) + "," + (row < 50 ? "low" : "high") + "\n";
  }
  return text;
}

// Rows with a column of whole numbers each.
std::string with_column(const std::string& name, const std::function<int(int)>& number, int rows = 101) {
  std::string text = name + ",a,kind\n";
  for (int i = 0; i < rows; ++i) {
    text += std::to_string(number(i)) + "," + std::to_string(wave(i, 0.7)) + "," + (i % 3 == 0 ? "low" : "high") + "\n";
  }
  return text;
}

// 1500 cars with 4, 6 or 8 cylinders, and below them `more` with another word there.
std::string cars(const std::string& word, int more, const std::string& number = "") {
  std::string text = "cylinders,a,kind\n";
  for (int i = 0; i < 1500 + more; ++i) {
    text += (i >= 1500        ? word
             : number.empty() ? std::to_string(4 + 2 * (i % 3))
                              : std::to_string(10 + i % 40) + number) +
            "," + std::to_string(wave(i, 0.7)) + "," + (i % 3 == 0 ? "low" : "high") + "\n";
  }
  return text;
}

// Firms with a row for each year.
std::string panel(const std::string& time = "year") {
  std::string text = "firm," + time + ",value,invest\n";
  for (int i = 0; i < 120; ++i) {
    text += std::to_string(1 + i / 12) + "," + std::to_string(1935 + i % 12) + "," + std::to_string(wave(i, 0.7)) +
            "," + std::to_string(wave(i, 0.9) + i / 12) + "\n";
  }
  return text;
}

std::string patients() {
  std::string text = "patient,dose,effect\n";
  for (int i = 0; i < 90; ++i) {
    text +=
        "p" + std::to_string(i % 15) + "," + std::to_string(wave(i, 0.7)) + "," + std::to_string(wave(i, 0.9)) + "\n";
  }
  return text;
}

// Patients whose ages differ but for two, so that any column beside the age makes each row another one.
std::string cholesterol() {
  std::string text = "age,chol,bili\n";
  for (int i = 0; i < 120; ++i) {
    text += std::to_string(30.25 + (i == 0 ? 119 : i)) + "," + (i % 9 == 4 ? "" : std::to_string(200 + i * 7 % 40)) +
            "," + std::to_string(wave(i, 0.9)) + "\n";
  }
  return text;
}

// Visits to a doctor: rare from 8 on.
std::string visits(int rows) {
  std::string text = "age,visits\n";
  for (int i = 0; i < rows; ++i) {
    const int draw = i * 7919 % 1000;
    int count = 0;
    for (int left = 500; draw >= 1000 - left && count < 30; ++count) left = left * 3 / 5;
    text += std::to_string(20 + wave(i, 0.7)) + "," + std::to_string(draw % 97 == 0 ? 10 + draw % 8 : count) + "\n";
  }
  return text;
}

struct Case {
  std::function<void(const TemporaryFolder&)> fill;
  Arguments arguments;  // after `new toml`
  std::string says;     // printed, or the error
  std::string toml;     // in the file; "": there is an error
};

const auto file = [](const char* name, const std::string& text) {
  return [=](const TemporaryFolder& folder) { folder.write(name, text); };
};

// An archive of NumPy's. points: X [60, 4], y of 0 and 1, weight. parts: x_train, y_train, x_test and y_test.
const auto archive = [](const std::string& name) {
  return [=](const TemporaryFolder& folder) {
    fs::copy_file(VERNIER_SOURCE_DIR "/tests/framework/cli/arrays/" + name, folder.path() / name);
  };
};

const std::vector<Case> runs = {
    {file("iris.csv", flowers()),
     {"iris.csv"},
     "iris.csv: 90 rows, 2 columns of numbers\ntarget species: 3 classes: setosa 30, versicolor 30, virginica 30\n"
     "task/tabular: classification of 3 classes",
     "kind = \"classification\"\ndata = \"iris.csv\"\ntarget = \"species\"\n"},
    {file("flats.csv", rents()),
     {"flats.csv"},
     "120 rows, 1 column of numbers, 1 column of words\ntarget rent, the last column: numbers from ",
     "kind = \"regression\"\ndata = \"flats.csv\"\ntarget = \"rent\"  # the last column; another by --target\n"},
    {file("flats.csv", rents()),
     {"flats.csv", "--target", "district", "--output", "own.toml"},
     "target district: 2 classes: centre 60, mill 60\n",
     "target = \"district\"\n"},
    {file("gaps.csv", rents(true)), {"gaps.csv"}, "there are missing values", "missing = \"mean\"\n"},
    {file("points.csv", points()),
     {"points.csv"},
     "there is no line of names",
     "target = \"3\"  # the last column\nheader = false\n"},
    {file("my ${data}'s.csv", flowers("x,\"two \"\"words\"\"\",Class\n")),
     {"my ${data}'s.csv"},
     "target Class: 3 classes",
     "data = \"my $${data}'s.csv\"\ntarget = \"Class\"\n"},
    {[](const TemporaryFolder& f) { write_arrays(f, "60, 4", 240); },
     {"x.npy"},
     "x.npy: a table of 60 rows and 4 columns\ny.npy: 2 classes\n",
     "use = \"tabular\"\nkind = \"classification\"\ndata = \"x.npy\"\ntargets = \"y.npy\"\n"},
    {[](const TemporaryFolder& f) { write_arrays(f, "60, 5, 2", 600); },
     {"x.npy", "--target", "y.npy"},
     "x.npy: 60 sequences of 5 steps and 2 features\n",
     "use = \"sequence\"\nkind = \"classification\"\n"},
    {archive("points.npz"),
     {"points.npz"},
     "points.npz:X: a table of 60 rows and 4 columns\npoints.npz:y: 2 classes\n",
     "use = \"tabular\"\nkind = \"classification\"\ndata = \"points.npz:X\"\ntargets = \"points.npz:y\"\n"},
    {archive("parts.npz"),
     {"parts.npz"},
     "parts.npz:x_train: a table of 50 rows and 4 columns\nparts.npz:y_train: numbers\n",
     "data = \"parts.npz:x_train\"\ntargets = \"parts.npz:y_train\"\n"},
    {archive("unclear.npz"),
     {"unclear.npz", "--target", "second"},
     "unclear.npz:second: numbers\n",
     "unclear.npz:table"},
    {[](const TemporaryFolder& f) { write_stripes(f, "pictures", 10); },
     {"pictures/"},
     "pictures/: 20 images in 2 classes: left 10, right 10\n",
     "use = \"images\"\nimages = \"pictures/\"\nmodel = \"resnet\"\n"},
    {[](const TemporaryFolder& f) { write_stripes(f, "d/train", 10, 80, 90), write_stripes(f, "d/val", 2, 70, 70); },
     {"d"},
     "d/train: 20 images in 2 classes: left 10, right 10\nd/val: held out\nimages become 64 x 64",
     "images = \"d/train\"\nvalidation_images = \"d/val\"\nsize = 64\n"},
    {[](const TemporaryFolder& f) {
       write_stripes(f, "d", 2);
       f.write("list.csv", "file,label\nd/left/100.png,a\nd/right/101.png,b\nd/left/102.png,a\nd/right/103.png,b\n");
     },
     {"list.csv"},
     "list.csv: 4 images in 2 classes: a 2, b 2\n",
     "use = \"images\"\nimages = \"list.csv\"\n"},
};

// Tables that are read in a way of their own.
const std::vector<Case> tables = {
    {file("r.csv", counted_rows("\"\"", 1)),
     {"r.csv"},
     "r.csv: 101 rows, 1 column of numbers\ncolumn '' counts the rows, and is left out; to learn from it: --set "
     "'task.leave_out=[]'\n",
     "leave_out = [\"\"]  # column '' counts the rows\n"},
    {file("r.csv", counted_rows("Unnamed: 0", 37)), {"r.csv"}, "1 column of numbers\n", "leave_out = [\"Unnamed: 0\"]"},
    {file("r.csv", counted_rows("id", 37)), {"r.csv"}, "column 'id' counts the rows", "leave_out = [\"id\"]"},
    {file("r.csv", counted_rows("lfd", 37)), {"r.csv"}, "column 'lfd' counts the rows", "leave_out = [\"lfd\"]"},
    {file("r.csv", with_column("lfd", [](int i) { return 1 + i * 37 % 101; })),
     {"r.csv"},
     "column 'lfd' counts the rows",
     "leave_out = [\"lfd\"]"},
    {file("r.csv", with_column("lfd", [](int i) { return 3 + i * 53 % 211; })),  // half of the rows, in any order
     {"r.csv"},
     "column 'lfd' counts the rows",
     "leave_out = [\"lfd\"]"},
    {file("r.csv", with_column("lfd", [](int i) { return i * 37 % 101 / 2; })),  // each number twice
     {"r.csv"},
     "2 columns of numbers\ntarget",
     "target = \"kind\""},
    {file("r.csv", with_column("area", [](int i) { return 7 + i * 5003 % 15013; })),
     {"r.csv"},
     "2 columns of numbers\ntarget",
     "target = \"kind\""},
    {file("r.csv", with_column("rank", [](int i) { return 1 + i * 37 % 101; })),
     {"r.csv"},
     "2 columns of numbers\ntarget",
     "target = \"kind\""},
    {file("r.csv", std::regex_replace(with_column("wealth", [](int i) { return 1 + i * 37 % 101; }),
                                      std::regex("\n([0-9]+),[^,]*"), "\n$1,$1")),  // places in two rankings
     {"r.csv"},
     "2 columns of numbers\ntarget",
     "target = \"kind\""},
    {file("cars.csv", cars("rotary", 3)),
     {"cars.csv"},
     "column cylinders has names such as 'rotary' among whole numbers, so all are words; if that stands for no value, "
     "set missing_words = [\"rotary\"]\n",
     "types = {cylinders = \"category\"}\n"},
    {file("cars.csv", cars("12a", 1, "0")), {"cars.csv"}, "such as '12a' among", "types = {cylinders = \"category\"}"},
    {file("cars.csv", cars("12a", 1, "0")),
     {"cars.csv", "--set", "task.types={kind = \"category\"}"},
     "such as '12a' among",
     "types = {kind = \"category\", cylinders = \"category\"}"},
    {file("cars.csv", std::regex_replace(cars("A", 200), std::regex("\n[468],"), "\n,")),
     {"cars.csv"},
     "column cylinders has no value in the first 1000 records, and words behind them\n",
     "types = {cylinders = \"category\"}\n"},
    {file("cars.csv", cars("rotary", 40)),
     {"cars.csv", "--target", "cylinders"},
     "target cylinders: 4 classes: ",
     "kind = \"classification\""},
    {file("cars.csv", cars("rotary", 3)),
     {"cars.csv", "--set", "task.missing_words=[\"rotary\"]"},
     "2 columns of numbers",
     "missing = \"mean\""},
    {file("r.csv", counted_rows("id", 1)),
     {"r.csv", "--set", "task.leave_out=[]"},
     "column 'id' counts the rows, and is an input",
     "leave_out = []\n"},
    {file("r.csv", counted_rows("", 1)), {"r.csv", "--target", "a"}, "is left out", "leave_out = [\"\"]"},
    {file("p.csv", panel()),
     {"p.csv"},
     "column 'firm' has several rows of each value, so whole groups are held out, and it is not an input; otherwise: "
     "--set "
     "task.split=random\n",
     "split = \"group:firm\"\n"},
    {file("p.csv", panel("t")), {"p.csv"}, "column 'firm' has several rows", "split = \"group:firm\"\n"},
    {file("p.csv", panel("visit")), {"p.csv"}, "column 'firm' has several rows", "split = \"group:firm\"\n"},
    {file("p.csv", panel("dose")), {"p.csv"}, "3 columns of numbers\n", "target = \"invest\""},
    {file("p.csv", cholesterol()), {"p.csv"}, "there are missing values", "another by --target\nmissing"},
    {file("p.csv", patients()), {"p.csv"}, "column 'patient' has several rows", "split = \"group:patient\"\n"},
    {file("p.csv", panel()), {"p.csv", "--set", "task.split=random"}, "3 columns of numbers\n", "split = \"random\"\n"},
    {file("v.csv", visits(900)),
     {"v.csv"},
     "whole numbers that look like counts are taken for numbers; to predict classes: --set task.kind=classification\n",
     "kind = \"regression\""},
    {file("v.csv", visits(720)), {"v.csv"}, "look like counts are taken for numbers", "kind = \"regression\""},
    {file("v.csv", visits(900)),
     {"v.csv", "--set", "task.kind=classification"},
     "target visits, the last column: ",
     "kind = \"classification\""},
    {file("money.csv",
          "size,price\n1,\"$1,302\"\n2,\"$2,100\"\n3,\"$3,300\"\n4,\"$4,200\"\n5,\"$5,100\"\n6,\"$6,900\"\n"),
     {"money.csv", "--set", "task.thousands=\",\"", "--set", "task.types={price = \"number\"}"},
     "target price, the last column: numbers from 1302 to 6900",
     "thousands = \",\"\ntypes = {price = \"number\"}\n"},
    {file("records.csv", flowers("0.5,0.25,setosa\n")),
     {"records.csv"},
     "records.csv: 91 rows, 2 columns of numbers\ntarget 3, the last column: 3 classes: setosa 31",
     "target = \"3\"  # the last column\nheader = false\n"},
    {file("words.csv", std::regex_replace(flowers(), std::regex("virginica"), "NA")),
     {"words.csv"},
     "column 'species': 30 cells are words such as 'NA', which stand for no value: their rows are not used; if it is a "
     "word, set missing_words = []\n",
     "missing = \"mean\"\n"},
    {file("trailing.csv", trailing()),
     {"trailing.csv"},
     "column '' has no value, and is left out\n",
     "leave_out = [\"\"]\n"},
    {file("commas.csv", commas()),
     {"commas.csv", "--set", "task.decimal=\",\"", "--set", "task.hidden=[8]"},
     "target y: numbers from 0.5 to 39.5",
     "decimal = \",\"\nhidden = [8]\n"},
    {file("words.csv", std::regex_replace(flowers(), std::regex("virginica"), "NA")),
     {"words.csv", "--set", "task.missing_words=[]"},
     "target species: 3 classes: NA 30, setosa 30, versicolor 30\n",
     "missing_words = []\n"},
};

const std::vector<Case> refusals = {
    {file("p.csv", std::regex_replace(panel(), std::regex("\n3,1940,"), "\n,1940,")),
     {"p.csv"},
     "'p.csv' line 31, column 'firm' has no value, and it is the group of the split; remove the line, or set split = "
     "\"random\"",
     ""},
    {file("a.csv", "target,label\n1,2\n2,3\n"),
     {"a.csv"},
     "several columns may be what is predicted: target,label; name one by --target",
     ""},
    {file("a.csv", flowers()),
     {"a.csv", "--target", "nope"},
     "'a.csv' has no column 'nope' for `target`; its columns are sepal,petal,species",
     ""},
    {file("a.csv", flowers(",petal,Species\n")),
     {"a.csv", "--target", "species"},
     "its columns are '',petal,Species; did you mean 'Species'?",
     ""},
    {file("a.csv", "a,b,c\n1.5,1.5,x\nnone,about 2,x\n2,2,y\n"),
     {"a.csv"},
     "has 2 columns that are not clear: line 3, column 'a' is 'none', and other lines have numbers there; line 3, "
     "column 'b' is 'about 2'",
     ""},
    {file("a.csv", cars("unknown", 5, "0")),
     {"a.csv"},
     "column 'cylinders' is 'unknown', and other lines have numbers there; correct it, set missing_words = "
     "[\"unknown\"] if it stands for no value",
     ""},
    {file("a.csv", cars("2 cm", 5)), {"a.csv"}, "column 'cylinders' is '2 cm', a number in another notation", ""},
    {file("a.csv", "size,price\n1,\"$1,302\"\n2,\"$2,100\"\n"),
     {"a.csv"},
     "set thousands = \",\" and types = {price = \"number\"}, or for words",
     ""},
    {file("a.csv", "x,name\n1,ann\n2,bob\n3,cid\n4,dan\n5,eva\n6,fay\n"),
     {"a.csv"},
     "the column 'name' has 6 different words in 6 rows, so it is not a target",
     ""},
    {file("a.csv", "x,y\n1,3\n2,3\n3,3\n"), {"a.csv"}, "the column 'y' has a single value", ""},
    {file("a.csv", "price,area\n1,882\n2,2.085\n3,700\n"), {"a.csv"}, "may have decimals or thousands", ""},
    {file("a.csv", "file,label,extra\n1.png,a,1\n2.png,b,2\n"), {"a.csv"}, "has names of images in column 'file'", ""},
    {file("a.csv", commas()),
     {"a.csv"},
     "set decimal = \",\"; or for words set types = {x = \"category\", y = \"category\"}; here keys are given by "
     "--set, "
     "as in --set 'task.decimal=\",\"'",
     ""},
    {file("a.csv", flowers()), {"a.csv", "--set", "run.steps=3"}, "here it is for options of the task", ""},
    {file("a.csv", flowers()), {"a.csv", "--set", "task.decimal=;"}, "`decimal`", ""},
    {file("a.csv", "x,label\n1,a\n2,b\n"), {"a.csv"}, "has a single row of each class", ""},
    {file("a.jsonl", "{}\n"), {"a.jsonl"}, "has no texts with a class or number", ""},
    {file("a.csv", "y\n1\n3\n"), {"a.csv"}, "'a.csv' has 2 steps; a forecast needs 12", ""},
    {file("a.parquet", std::string("PAR1\x15\0....", 10)),
     {"a.parquet"},
     "'a.parquet' is a Parquet file, which is not read; convert it: python3",
     ""},
    {file("a.xlsx", "PK\x03\x04"),
     {"a.xlsx"},
     "'a.xlsx' is a sheet of Excel, which is not read; convert it: python3",
     ""},
    {file("a.npz", "PK"), {"a.npz"}, "'a.npz'", ""},
    {archive("unclear.npz"), {"unclear.npz"}, "has the arrays first [60],second [60],table [60, 4]; a series has", ""},
    {file("b.npy", npy<float>("<f4", "4,", {1, 2, 3, 4})), {"b.npy"}, "'b.npy' has 4 steps; a forecast needs 12", ""},
    {file("iris.toml", ""), {"nope.csv"}, "'nope.csv' does not exist; paths are relative to the working folder", ""},
    {file("a.toml", ""), {"a.csv"}, "a.toml: is there already; name another file, or replace it with --force", ""},
    {file("a", ""), {}, "name the data, as in `vernier new toml iris.csv`", ""},
    {file("d/a/1.png", ""), {"d"}, "the class 'd/a' has no PNG, JPEG or WebP image", ""},
};

// Calls the verb, which checks what it writes, and returns the name of the file.
std::string checked(RunFolder& place, const Case& each) {
  each.fill(place.folder);
  Arguments all = {"new", "toml"};
  all.insert(all.end(), each.arguments.begin(), each.arguments.end());
  CHECK(place.call(all) == 0);
  CHECK(place.err == "");
  CHECK_MESSAGE(says(place.out, each.says), place.out);
  const auto start = place.out.find("wrote ") + 6;
  const auto name = place.out.substr(start, place.out.find('\n', start) - start);
  CHECK(says(read_text(place.at(name)), each.toml));
  return name;
}

}  // namespace

TEST_CASE("new toml writes runs that pass check and train") {
  for (const auto& each : runs) {
    CAPTURE(each.says);
    RunFolder place("");
    const auto name = checked(place, each);
    CHECK(place.call({"train", name, "--set", "run.epochs=4", "--set", "run.validate_every=1", "--set",
                      "callback.early_stopping.patience=1", "--quiet"}) == 0);
    CHECK((place.err == "" || says(place.err, "the model is worse than no model")));  // after so few steps
  }
}

TEST_CASE("new toml says how it reads a table, and takes options of the task") {
  for (const auto& each : tables) {
    CAPTURE(each.says);
    RunFolder place("");
    checked(place, each);
  }
}

TEST_CASE("new toml for data in another folder") {
  RunFolder place("");
  const TemporaryFolder other;
  CHECK(place.call({"new", "toml", other.write("iris.csv", flowers())}) == 0);
  CHECK(says(read_text(place.at("iris.toml")), "data = \"" + other.path().string() + "/iris.csv\"\n"));
  CHECK(place.call({"train", "iris.toml", "--quiet"}) == 0);
  CHECK(place.call({"evaluate", "runs/iris"}) == 0);
  CHECK_MESSAGE(std::regex_search(place.out, std::regex("accuracy +1 ")), place.out);
}

TEST_CASE("new toml for arrays in an archive: the run is evaluated, and predicts another archive and array elsewhere") {
  RunFolder place("");
  archive("points.npz")(place.folder);
  REQUIRE(place.call({"new", "toml", "points.npz"}) == 0);
  REQUIRE(place.call({"train", "points.toml", "--quiet", "--set", "run.epochs=20"}) == 0);
  CHECK(place.call({"evaluate", "runs/points"}) == 0);
  CHECK_MESSAGE(says(place.out, "accuracy"), place.out);
  fs::rename(place.at("points.npz"), place.at("new.npz"));
  CHECK(place.call({"predict", "runs/points", "--input", "new.npz", "--output", "p.csv"}) == 0);
  CHECK_MESSAGE(place.err == "", place.err);
  CHECK(place.call({"evaluate", "runs/points", "--set", "task.data=new.npz:X", "--set", "task.targets=new.npz:y"}) ==
        0);
  std::vector<float> x;
  for (int i = 0; i < 12; ++i) x.push_back(static_cast<float>(wave(i, 0.7)));
  place.folder.write("x.npy", npy("<f4", "3, 4", x));
  CHECK(place.call({"predict", "runs/points", "--input", "x.npy", "--output", "x.csv"}) == 0);
  CHECK(std::ranges::count(read_text(place.at("x.csv")), '\n') == 4);
}

TEST_CASE("new toml refuses in one line what is not clear, and writes nothing") {
  for (const auto& each : refusals) {
    CAPTURE(each.says);
    RunFolder place("");
    each.fill(place.folder);
    Arguments all = {"new", "toml"};
    all.insert(all.end(), each.arguments.begin(), each.arguments.end());
    CHECK(place.call(all) == 2);
    CHECK(is_one_line(place.err));
    CHECK_MESSAGE(says(place.err, each.says), place.err);
    CHECK_FALSE(fs::exists(place.at("b.toml")));
  }
}

}  // namespace new_toml_test
