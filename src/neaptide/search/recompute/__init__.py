"""What to keep from the forward for the backward."""

from neaptide.search.recompute.choose import Chooser as Chooser
from neaptide.search.recompute.cut import Cutter as Cutter
from neaptide.search.recompute.judge import Judge as Judge
from neaptide.search.recompute.replay import Choice as Choice
from neaptide.search.recompute.scene import Scene as Scene
from neaptide.search.recompute.seeds import keep_all as keep_all
from neaptide.search.recompute.seeds import starting_points as starting_points
