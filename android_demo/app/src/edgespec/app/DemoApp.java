package edgespec.app;

import android.app.Application;
import java.io.File;

/**
 * Holds the objects that must outlive the screen: Android destroys the Activity when the phone is
 * turned, and this object only together with the process.
 */
public final class DemoApp extends Application {
    Changes changes;
    Conversation conversation;
    ModelFile modelFile;

    @Override
    public void onCreate() {
        super.onCreate();
        getExternalFilesDir(null); // creates the folder to which adb push can write a model
        changes = new Changes();
        conversation = new Conversation(this, changes, new File(getFilesDir(), "conversation"));
        modelFile = new ModelFile(this, changes, new File(getFilesDir(), "model.gguf"));
    }
}
