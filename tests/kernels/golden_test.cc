// SPDX-FileCopyrightText: 2026 The dmuon authors
// SPDX-License-Identifier: Apache-2.0

// Golden vectors: two steps of each optimizer on a 2 x 3 matrix, computed in double by an
// implementation that shares nothing with this one.
#include <array>
#include <cmath>
#include <ostream>

#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/stages.h"
#include "tests/kernels/matrices.h"

namespace dmuon::kernels {
namespace {

// The vectors are printed with 12 digits.
constexpr double kDoubleTolerance = 1e-10;
// Rounding inside fp32 Newton-Schulz moves a weight by at most 1.1e-7 here; the result rounds once.
constexpr double kFloatTolerance = 1e-6;
// Of a direction, where sums are taken in an order that is not ours: roundings of 6e-8 grow by up to 485 (Jordan).
constexpr double kForeignSumsTolerance = 1e-5;

using Six = std::array<double, 6>;

constexpr Six kFirstGradient = {.30, -.10, .20, .05, .40, -.25};
constexpr Six kSecondGradient = {-.20, .10, .15, .30, -.05, .10};
constexpr Six kWeight = {.50, -.50, .25, 1.0, .75, -1.0};

Six TransposedSix(const Six& m) { return {m[0], m[3], m[1], m[4], m[2], m[5]}; }

Optimizer MuonRow(Momentum momentum, bool nesterov, ScaleRule scale, EpsMode eps_mode) {
  Optimizer row = Muon();
  row.momentum = momentum;
  row.nesterov = nesterov;
  row.scale = scale;
  row.newton_schulz.eps_mode = eps_mode;
  return row;
}

// With the eps that the vectors were made with.
Optimizer Eps(Optimizer row) {
  row.newton_schulz.eps_mode = EpsMode::kAdd;
  return row;
}

Optimizer NorMuonPaper() {
  Optimizer row = Eps(NorMuon());
  row.nesterov = false;
  row.second_moment_eps = 1e-8;
  row.rescale = Rescale::kRms;
  row.scale = ScaleRule::kNone;
  return row;
}

Optimizer AdaMuonRow(bool sign) {
  Optimizer row = Eps(AdaMuon());
  row.nesterov = false;
  row.sign = sign;
  return row;
}

Optimizer MonaRow() {
  Optimizer row = Eps(Mona());
  row.scale = ScaleRule::kMatchRmsAdamw;
  return row;
}

Optimizer Dion2Row() {
  Optimizer row = Eps(Dion2());
  row.selected = 0.5;
  return row;
}

Optimizer NuMuonRow() {
  Optimizer row = NuMuon();
  row.top_k.rank_start = 0.5;  // one of two
  return row;
}

struct Golden {
  const char* name;
  Optimizer optimizer;
  bool tall;
  Six first, second;  // the weight after each step
};

void PrintTo(const Golden& golden, std::ostream* out) { *out << golden.name; }

const Golden kGoldens[] = {
    {"KellerJordan",
     MuonRow(Momentum::kEma, true, ScaleRule::kOriginal, EpsMode::kAdd),
     false,
     {.428570926827, -.480642386370, .208508030535, .974537516135, .665512593648, -.944452056581},
     {.444640037753, -.489442600537, .138598632469, .862416916597, .616855808052, -.927588339340}},
    {"KellerJordanTall",
     MuonRow(Momentum::kEma, true, ScaleRule::kOriginal, EpsMode::kAdd),
     true,
     {.413641333320, .971062402188, -.477415586341, .648210068909, .199744785373, -.934215389896},
     {.434434381627, .835968247153, -.489306090623, .590286650962, .114679852186, -.915786612918}},
    {"TorchOriginal",
     MuonRow(Momentum::kEma, true, ScaleRule::kOriginal, EpsMode::kClamp),
     false,
     {.428571247209, -.480642825285, .208508469966, .974537382216, .665513515020, -.944452742039},
     {.444640322060, -.489443055070, .138599050183, .862416898441, .616856758809, -.927589051456}},
    {"TorchMatchRmsAdamw",
     MuonRow(Momentum::kEma, true, ScaleRule::kMatchRmsAdamw, EpsMode::kClamp),
     false,
     {.471988405016, -.490026528788, .233992937783, .984643592076, .715831099304, -.974221967013},
     {.474319626131, -.489839748109, .208157969534, .939333377782, .694122999975, -.961909673834}},
    {"Moonlight",
     MuonRow(Momentum::kAccumulate, true, ScaleRule::kMatchRmsAdamw, EpsMode::kAdd),
     false,
     {.471988399467, -.490026521186, .233992930172, .984643594396, .715831083345, -.974221955140},
     {.474319621206, -.489839740236, .208157962299, .939333378096, .694122983507, -.961909661499}},
    {"AccumulateSpectral",
     MuonRow(Momentum::kAccumulate, false, ScaleRule::kSpectral, EpsMode::kAdd),
     false,
     {.440761124966, -.483277380991, .215663514059, .977374836109, .679640724886, -.952810765035},
     {.423706373397, -.478279459309, .158432429904, .903730416466, .611967785857, -.916912822107}},
    {"AccumulateSpectralTall",
     MuonRow(Momentum::kAccumulate, false, ScaleRule::kSpectral, EpsMode::kAdd),
     true,
     {.413641687448, .971062254163, -.477416071487, .648211087330, .199745271089, -.934216147552},
     {.390534560095, .865545624698, -.472394188963, .550414178785, .115136144856, -.885319233161}},
    {"NorMuon",
     Eps(NorMuon()),
     false,
     {.423110834697, -.479462272160, .205303112336, .975556864664, .670587910143, -.947454758445},
     {.443520948265, -.491139629247, .121143039771, .874050557786, .626239297615, -.931330977355}},
    {"NorMuonTall",
     Eps(NorMuon()),
     true,
     {.412413606578, .970776628143, -.479454503327, .659143009058, .192356749033, -.925585154855},
     {.429771083729, .853026395649, -.494812329961, .590344217076, .091831165850, -.905543382103}},
    {"NorMuonPaper",
     NorMuonPaper(),
     false,
     {.465631140714, -.488652221422, .230261212481, .984099652969, .713121711223, -.972618916326},
     {.453856906266, -.483672744624, .196962171739, .948414407343, .681357774717, -.952222588083}},
    {"AdaMuon",
     Eps(AdaMuon()),
     false,
     {.475000000197, -.474999999929, .227499999929, .970000000197, .722499999929, -.969999999929},
     {.491709537095, -.488670839000, .205220976312, .938840463294, .696854160859, -.940295976312}},
    {"AdaMuonPlainMomentum",
     AdaMuonRow(true),
     false,
     {.475000000197, -.474999999929, .227499999929, .970000000197, .722499999929, -.969999999929},
     {.448790463294, -.490254023547, .206804160859, .938840463294, .695270976312, -.941879160859}},
    {"AdaMuonWithoutSign",
     AdaMuonRow(false),
     false,
     {.474999998235, -.475000003118, .227499999182, .970000002673, .722499998050, -.969999998852},
     {.463208771351, -.469812611305, .198858714215, .930583066524, .693944382805, -.942496701920}},
    {"Muon2",
     Eps(Muon2()),
     false,
     {.450773178501, -.452075992221, .204575982434, .945773210019, .699575976911, -.947075979980},
     {.433839179231, -.448839235364, .124880029143, .871924962271, .645178719535, -.906933320825}},
    {"Muon2Factored",
     Eps(Muon2Factored()),
     false,
     {.430518223191, -.483533509326, .210505950135, .975476108837, .690171960476, -.950245421238},
     {.411026347690, -.478904800198, .125191640854, .913577195130, .627618885796, -.912645030544}},
    {"Mona",
     MonaRow(),
     false,
     {.471988399467, -.490026521186, .233992930172, .984643594396, .715831083345, -.974221955140},
     {.453579891208, -.480671605240, .210989716033, .958693985073, .678356421043, -.947771660450}},
    {"Dion2",
     Dion2Row(),
     false,
     {.495, -.495, .2475, .984006027876, .694548223011, -.960030139382},
     {.49005, -.49005, .245025, .934531505205, .649964258509, -.934747137041}},
    {"NuMuon",
     NuMuonRow(),
     false,
     {.484525273785, -.456541981230, .216739667702, 1.007975286356, .676503630653, -.937213342847},
     {.487774982229, -.444067536074, .210275144272, .931517945627, .604885655228, -.892605350693}},
    {"AdamW",
     AdamW(),
     false,
     {.395000003333, -.395000010000, .147500005000, .890000020000, .642500002500, -.890000004000},
     {.376527554142, -.396313167268, .047419778994, .797673225857, .578110629637, -.846220347672}},
};

Hyper GoldenHyper(const Optimizer& optimizer) {
  return {.lr = 0.1,
          .weight_decay = 0.1,
          .momentum = optimizer.needs_whole_matrix() ? 0.95 : 0.9,
          .beta2 = 0.95};
}

class GoldenTest : public testing::TestWithParam<Golden> {
 protected:
  [[nodiscard]] static int64_t rows() { return GetParam().tall ? 3 : 2; }
  [[nodiscard]] static int64_t cols() { return GetParam().tall ? 2 : 3; }
  [[nodiscard]] static Six Input(const Six& wide) {
    return GetParam().tall ? TransposedSix(wide) : wide;
  }
};

TEST_P(GoldenTest, ReferenceAgreesInDouble) {
  const Optimizer& optimizer = GetParam().optimizer;
  const Hyper hyper = GoldenHyper(optimizer);
  Six weight = Input(kWeight);
  Six momentum{};
  Six second_moment{};
  Six slow_gradient{};
  std::array<double, 3> column_moment{};
  BasicUnitState<double> state{rows(), cols(), weight, momentum, second_moment, column_moment, slow_gradient, {}, 0};
  const auto step = [&](const Six& gradient) {
    Six update{};
    if (optimizer.needs_whole_matrix()) {
      const auto [m, n] = MakeDirection<double>(optimizer, hyper, 1.0, gradient, state, update);
      const std::span<double> direction = std::span(update).first(static_cast<size_t>(m * n));
      if (optimizer.orthogonalizer == Orthogonalizer::kTopK) {
        reference::OrthogonalizeTopK(RankAt(optimizer.top_k, state.step, 2), m, n, direction, {});
      } else {
        reference::Orthogonalize(optimizer.newton_schulz, m, n, direction);
      }
    }
    ApplyStep<double>(optimizer, hyper, 1.0, gradient, update, state);
  };
  const auto expect = [&](const Six& expected) {
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(weight[i], expected[i], kDoubleTolerance) << i;
  };
  step(Input(kFirstGradient));
  expect(GetParam().first);
  step(Input(kSecondGradient));
  expect(GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(kGoldens),
                         [](const auto& golden) { return std::string(golden.param.name); });

struct GoldenSet {
  CoefficientSet set;
  Six orthogonal;                // of the first gradient
  std::array<double, 5> scalar;  // f(1), f(.5), f(.1), f(.01), f(.001)
};

const GoldenSet kSets[] = {
    {CoefficientSet::kJordan,
     {.664287840284, -.143572175101, .389915728793, .154626047264, .769865748148, -.455473247944},
     {.696436409470, .765438530454, .712120081658, .698917063322, .470543951220}},
    {CoefficientSet::kYou,
     {.877427631154, -.065396892134, .430538044359, .274310486019, .832009978649, -.445070171633},
     {.978345560294, .985869354097, 1.019049888747, 1.018025224968, .474981563989}},
    {CoefficientSet::kPolarExpress,
     {.882123767123, -.109847632534, .462830847657, .250905831323, .902084911548, -.503019174071},
     {1.019027879382, .884924034105, .878715417551, .906026844409, .729003089444}},
};

TEST(GoldenNewtonSchulz, MatrixAgreesForEverySet) {
  for (const GoldenSet& golden : kSets) {
    SCOPED_TRACE(static_cast<int>(golden.set));
    const NewtonSchulz ns{.coefficients = golden.set, .eps_mode = EpsMode::kAdd};
    Six wide = kFirstGradient;
    reference::Orthogonalize(ns, 2, 3, wide);
    Six tall = TransposedSix(kFirstGradient);
    reference::Orthogonalize(ns, 3, 2, tall);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_NEAR(wide[i], golden.orthogonal[i], kDoubleTolerance) << i;
      EXPECT_NEAR(tall[i], TransposedSix(golden.orthogonal)[i], kDoubleTolerance) << i;
    }
  }
}

// The same vectors for every backend, in float.
class GoldenBackendTest : public BackendTest {
 protected:
  static Matrix ToMatrix(const Six& wide, bool tall) {
    const Six values = tall ? TransposedSix(wide) : wide;
    return {tall ? 3 : 2, tall ? 2 : 3, {values.begin(), values.end()}};
  }
  static void ExpectNear(const Matrix& got, const Six& expected, double tolerance) {
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(got.values[i], expected[i], tolerance) << i;
  }
};

DMUON_INSTANTIATE_BACKENDS(GoldenBackendTest);

TEST_P(GoldenBackendTest, EveryOptimizerAgreesInFloat) {
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(golden.name);
    if (!backend().Supports(golden.optimizer).ok()) continue;
    Unit unit(backend(), golden.optimizer, GoldenHyper(golden.optimizer), ToMatrix(kWeight, golden.tall));
    unit.Step(ToMatrix(kFirstGradient, golden.tall));
    ExpectNear(unit.weight(), golden.first, kFloatTolerance);
    unit.Step(ToMatrix(kSecondGradient, golden.tall));
    ExpectNear(unit.weight(), golden.second, kFloatTolerance);
  }
}

TEST_P(GoldenBackendTest, MatrixAgreesForEverySetInFloat) {
  for (const GoldenSet& golden : kSets) {
    SCOPED_TRACE(static_cast<int>(golden.set));
    const NewtonSchulz ns{.coefficients = golden.set, .eps_mode = EpsMode::kAdd};
    ExpectNear(Orthogonal(backend(), ns, ToMatrix(kFirstGradient, false)), golden.orthogonal,
               backend().name() == "cuda" ? kForeignSumsTolerance : kFloatTolerance);
  }
}

TEST(GoldenNewtonSchulz, SingularValuesFollowThePolynomial) {
  constexpr std::array<double, 5> kInputs = {1.0, 0.5, 0.1, 0.01, 0.001};
  for (const GoldenSet& golden : kSets) {
    for (size_t i = 0; i < kInputs.size(); ++i) {
      // A diagonal of norm 1, so that normalising leaves both singular values alone.
      const double s = kInputs[i];
      std::array<double, 4> diagonal = {s, 0.0, 0.0, std::sqrt(1.0 - s * s)};
      reference::Orthogonalize({.coefficients = golden.set}, 2, 2, diagonal);
      EXPECT_NEAR(diagonal[0], golden.scalar[i], kDoubleTolerance)
          << "set " << static_cast<int>(golden.set) << " f(" << s << ")";
    }
  }
}

}  // namespace
}  // namespace dmuon::kernels
