package kudulite;

import java.util.List;
import java.util.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Java's collections as Scala's and back: Spark's own classes take and give these everywhere. */
class Scala {
  static <T> List<T> list(scala.collection.Seq<T> given) {
    return CollectionConverters.asJava(given);
  }

  static <T> Seq<T> seq(List<T> given) {
    return CollectionConverters.asScala(given).toSeq();
  }

  static scala.collection.immutable.Map<String, String> map(Map<String, String> given) {
    return Map$.MODULE$.from(CollectionConverters.asScala(given));
  }
}
